//! The expressions of `resourcesPolicy`: `max(cpu*50%, 50m)`, `memory-100Mi`.
//!
//! An expression is read once into a form whose types are right: numbers are computed while it is read, amounts hold the
//! variable. So a product of amounts, a division by nothing, a variable of the other resource or an unknown unit is refused
//! when a SidecarSet is written, and not first when a Pod is created. What is left for later is an amount that depends on
//! the Pod: a result that is negative, or too large.

use super::amount::Amount;

mod ratio;
mod tokens;

use ratio::Ratio;
use tokens::{Token, Tokens};

/// The most bytes of an expression.
pub const MOST_TEXT: usize = 512;
/// The most parentheses and signs inside one another.
const MOST_DEPTH: u32 = 32;

/// What an expression is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `cpu`, in cores.
    Cpu,
    /// `memory`, in bytes.
    Memory,
}

impl Variable {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Memory];

    /// Its name, which is that of the resource too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Cpu => Self::Memory,
            Self::Memory => Self::Cpu,
        }
    }
}

/// Why an expression cannot be read, or has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// It has too many bytes.
    #[error("it has {0} bytes; want at most {MOST_TEXT}")]
    TooLong(usize),
    /// Parentheses inside parentheses.
    #[error("parentheses and signs are inside one another more than {MOST_DEPTH} deep")]
    TooDeep,
    /// Something else was to come.
    #[error("at character {at}: found {found}; want {wanted}")]
    Unexpected {
        /// From 1.
        at: usize,
        /// What is there.
        found: String,
        /// What may be there.
        wanted: &'static str,
    },
    /// A number that is none.
    #[error("{0:?} is no number; want for example 2, 0.5, 50%, 100m or 64Mi")]
    BadNumber(String),
    /// A unit that is none.
    #[error("{0:?} has an unknown unit; want m, k, M, G, T, P, Ki, Mi, Gi, Ti, Pi or %")]
    UnknownUnit(String),
    /// A name that is none.
    #[error("{name:?} is not known; want {variable}, max or min")]
    UnknownName {
        /// The name.
        name: String,
        /// The variable.
        variable: &'static str,
    },
    /// The variable of the other resource.
    #[error("{} cannot be used here; want {}", .0.name(), .0.other().name())]
    OtherVariable(Variable),
    /// An amount by an amount.
    #[error("an amount is multiplied by an amount; one of the two has to be a number")]
    Product,
    /// Something by an amount.
    #[error("something is divided by an amount; want a number")]
    DivisionByAmount,
    /// Something by nothing.
    #[error("something is divided by 0")]
    DivisionByZero,
    /// No object can hold it.
    #[error("a result is too large")]
    TooLarge,
    /// Resources are not negative.
    #[error("the result is negative")]
    Negative,
}

type Result<T> = std::result::Result<T, ExpressionError>;

/// An amount that may depend on the variable.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Constant(Amount),
    Variable,
    Sum(Box<Node>, Box<Node>),
    Difference(Box<Node>, Box<Node>),
    Scaled(Box<Node>, Ratio),
    Larger(Box<Node>, Box<Node>),
    Smaller(Box<Node>, Box<Node>),
}

/// A part of an expression: a number is known at once.
enum Part {
    Number(Ratio),
    Amount(Node),
}

/// An expression that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    node: Node,
    variable: Variable,
}

impl Expression {
    /// Reads an expression over a variable. Names are read in any case, spaces do not count.
    ///
    /// # Errors
    /// It is no expression, mixes up numbers and amounts, or its result is negative whatever the variable is.
    pub fn parse(text: &str, variable: Variable) -> Result<Self> {
        if text.len() > MOST_TEXT {
            return Err(ExpressionError::TooLong(text.len()));
        }
        let mut parser = Parser { tokens: Tokens::of(text)?, variable, depth: 0 };
        let part = parser.sum()?;
        parser.tokens.end()?;
        let node = match part {
            Part::Amount(node) => node,
            // Parts of a byte are rounded up, those of a thousandth of a core cut off.
            Part::Number(number) => match variable {
                Variable::Cpu => Node::Constant(constant(number)?),
                Variable::Memory => {
                    let bytes = number.ceil().checked_mul(1000).ok_or(ExpressionError::TooLarge)?;
                    Node::Constant(Amount::of_milli(bytes, false).ok_or(ExpressionError::TooLarge)?)
                }
            },
        };
        let expression = Self { node, variable };
        if !expression.node.varies() {
            expression.evaluate(Amount::ZERO)?;
        }
        Ok(expression)
    }

    /// Its result, where the variable has a value. Memory is rounded up to whole bytes.
    ///
    /// # Errors
    /// The result is negative or too large.
    pub fn evaluate(&self, value: Amount) -> Result<Amount> {
        let result = self.node.evaluate(value)?;
        match (result.milli() < 0, self.variable) {
            (true, _) => Err(ExpressionError::Negative),
            (false, Variable::Cpu) => Ok(result),
            (false, Variable::Memory) => Ok(result.whole()),
        }
    }
}

impl Node {
    /// Whether its value depends on the variable.
    fn varies(&self) -> bool {
        match self {
            Self::Constant(_) => false,
            Self::Variable => true,
            Self::Scaled(a, _) => a.varies(),
            Self::Sum(a, b) | Self::Difference(a, b) | Self::Larger(a, b) | Self::Smaller(a, b) => {
                a.varies() || b.varies()
            }
        }
    }

    fn evaluate(&self, value: Amount) -> Result<Amount> {
        let too_large = || ExpressionError::TooLarge;
        Ok(match self {
            Self::Constant(amount) => *amount,
            Self::Variable => value,
            Self::Sum(a, b) => a.evaluate(value)?.plus(b.evaluate(value)?).ok_or_else(too_large)?,
            Self::Difference(a, b) => a.evaluate(value)?.minus(b.evaluate(value)?).ok_or_else(too_large)?,
            Self::Scaled(a, by) => {
                let amount = a.evaluate(value)?;
                let milli = by.times(amount.milli()).ok_or_else(too_large)?;
                amount.with_milli(milli).ok_or_else(too_large)?
            }
            Self::Larger(a, b) => a.evaluate(value)?.max(b.evaluate(value)?),
            Self::Smaller(a, b) => a.evaluate(value)?.min(b.evaluate(value)?),
        })
    }
}

/// A number as an amount, cut to thousandths.
fn constant(number: Ratio) -> Result<Amount> {
    let milli = number.times(1000).ok_or(ExpressionError::TooLarge)?;
    Amount::of_milli(milli, false).ok_or(ExpressionError::TooLarge)
}

impl Part {
    fn amount(self) -> Result<Node> {
        match self {
            Self::Amount(node) => Ok(node),
            Self::Number(number) => Ok(Node::Constant(constant(number)?)),
        }
    }
}

struct Parser {
    tokens: Tokens,
    variable: Variable,
    depth: u32,
}

impl Parser {
    fn sum(&mut self) -> Result<Part> {
        let mut left = self.product()?;
        loop {
            let is_sum = match self.tokens.peek() {
                Some(Token::Sign('+')) => true,
                Some(Token::Sign('-')) => false,
                _ => return Ok(left),
            };
            self.tokens.next();
            let right = self.product()?;
            left = match (left, right) {
                (Part::Number(a), Part::Number(b)) => {
                    let b = if is_sum { b } else { b.negated() };
                    Part::Number(a.plus(b).ok_or(ExpressionError::TooLarge)?)
                }
                (a, b) if is_sum => Part::Amount(Node::Sum(a.amount()?.into(), b.amount()?.into())),
                (a, b) => Part::Amount(Node::Difference(a.amount()?.into(), b.amount()?.into())),
            };
        }
    }

    fn product(&mut self) -> Result<Part> {
        let mut left = self.signed()?;
        loop {
            let is_product = match self.tokens.peek() {
                Some(Token::Sign('*')) => true,
                Some(Token::Sign('/')) => false,
                _ => return Ok(left),
            };
            self.tokens.next();
            let right = self.signed()?;
            let by = |number: Ratio| {
                if is_product { Ok(number) } else { number.inverted().ok_or(ExpressionError::DivisionByZero) }
            };
            left = match (left, right) {
                (Part::Number(a), Part::Number(b)) => {
                    Part::Number(a.multiplied(by(b)?).ok_or(ExpressionError::TooLarge)?)
                }
                (Part::Amount(a), Part::Number(b)) => Part::Amount(Node::Scaled(a.into(), by(b)?)),
                (Part::Number(a), Part::Amount(b)) if is_product => Part::Amount(Node::Scaled(b.into(), a)),
                (_, Part::Amount(_)) if !is_product => return Err(ExpressionError::DivisionByAmount),
                _ => return Err(ExpressionError::Product),
            };
        }
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(ExpressionError::TooDeep);
        }
        let read = read(self);
        self.depth -= 1;
        read
    }

    fn signed(&mut self) -> Result<Part> {
        if self.tokens.peek() != Some(&Token::Sign('-')) {
            return self.primary();
        }
        self.tokens.next();
        Ok(match self.deeper(Self::signed)? {
            Part::Number(number) => Part::Number(number.negated()),
            Part::Amount(node) => Part::Amount(Node::Scaled(node.into(), Ratio::ONE.negated())),
        })
    }

    fn primary(&mut self) -> Result<Part> {
        const WANTED: &str = "a number, an amount, a variable, max, min or \"(\"";
        match self.tokens.next() {
            Some(Token::Number(number)) => Ok(Part::Number(number)),
            Some(Token::Amount(amount)) => Ok(Part::Amount(Node::Constant(amount))),
            Some(Token::Sign('(')) => {
                let inner = self.deeper(Self::sum)?;
                self.tokens.expect(')', "\")\"")?;
                Ok(inner)
            }
            Some(Token::Name(name)) => self.named(&name),
            Some(Token::Sign(_)) | None => Err(self.tokens.unexpected(WANTED)),
        }
    }

    fn named(&mut self, name: &str) -> Result<Part> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        if is(self.variable.name()) {
            return Ok(Part::Amount(Node::Variable));
        }
        if is(self.variable.other().name()) {
            return Err(ExpressionError::OtherVariable(self.variable.other()));
        }
        let is_max = match (is("max"), is("min")) {
            (true, _) => true,
            (_, true) => false,
            _ => return Err(ExpressionError::UnknownName { name: name.into(), variable: self.variable.name() }),
        };
        self.tokens.expect('(', "\"(\"")?;
        let a = self.deeper(Self::sum)?;
        self.tokens.expect(',', "\",\"")?;
        let b = self.deeper(Self::sum)?;
        self.tokens.expect(')', "\")\"")?;
        Ok(match (a, b) {
            (Part::Number(a), Part::Number(b)) => {
                let takes_first = if is_max { !b.is_more_than(a) } else { !a.is_more_than(b) };
                Part::Number(if takes_first { a } else { b })
            }
            (a, b) if is_max => Part::Amount(Node::Larger(a.amount()?.into(), b.amount()?.into())),
            (a, b) => Part::Amount(Node::Smaller(a.amount()?.into(), b.amount()?.into())),
        })
    }
}

#[cfg(test)]
mod tests;
