use super::*;

fn result(text: &str, variable: Variable, value: &str) -> std::result::Result<String, ExpressionError> {
    Ok(Expression::parse(text, variable)?.evaluate(Amount::parse(value).unwrap())?.to_string())
}

#[test]
fn expressions_have_the_results_of_the_specification() {
    for (text, variable, value, wanted) in [
        ("cpu", Variable::Cpu, "2", "2"),
        ("CPU * 50%", Variable::Cpu, "1", "500m"),
        ("cpu*0.29", Variable::Cpu, "100m", "29m"),
        ("cpu/3", Variable::Cpu, "1", "333m"),
        ("max(cpu*50%, 50m)", Variable::Cpu, "60m", "50m"),
        ("min(200m,max(cpu*10%,20m))", Variable::Cpu, "1", "100m"),
        ("200m", Variable::Cpu, "9", "200m"),
        ("0.2", Variable::Cpu, "9", "200m"),
        ("2e-1", Variable::Cpu, "9", "200m"),
        ("1.5e3m", Variable::Cpu, "9", "1500m"),
        ("cpu-(-1)", Variable::Cpu, "1", "2"),
        ("--cpu", Variable::Cpu, "1", "1"),
        ("-cpu+2", Variable::Cpu, "500m", "1500m"),
        ("2*3+4", Variable::Cpu, "0", "10"),
        ("2+3*4", Variable::Cpu, "0", "14"),
        ("10/4/5", Variable::Cpu, "0", "500m"),
        ("memory", Variable::Memory, "1Gi", "1Gi"),
        ("memory/2", Variable::Memory, "1Gi", "512Mi"),
        ("memory+100Mi", Variable::Memory, "0", "100Mi"),
        ("memory*10%", Variable::Memory, "1000M", "100M"),
        ("1024", Variable::Memory, "0", "1024"),
        ("max(memory, 64Mi)", Variable::Memory, "64Mi", "64Mi"),
        ("min(memory, 1)", Variable::Memory, "64Mi", "1"),
    ] {
        assert_eq!(result(text, variable, value).as_deref(), Ok(wanted), "{text} at {value}");
    }
}

/// OpenKruise tries an expression with the number 1 and so refuses these, which fit for every ordinary Pod.
#[test]
fn e14_sensible_expressions_are_accepted() {
    assert_eq!(result("cpu-4", Variable::Cpu, "6").as_deref(), Ok("2"));
    assert_eq!(result("memory-100Mi", Variable::Memory, "1Gi").as_deref(), Ok("924Mi"));
    assert_eq!(result("MEMORY-100Mi", Variable::Memory, "1Gi").as_deref(), Ok("924Mi"));
    assert_eq!(result("memory-100Mi", Variable::Memory, "64Mi"), Err(ExpressionError::Negative));
}

#[test]
fn e14_what_would_fail_for_every_pod_is_refused_at_once() {
    let parse = |text| Expression::parse(text, Variable::Cpu).unwrap_err();
    assert_eq!(parse("cpu*cpu"), ExpressionError::Product);
    assert_eq!(parse("100m*cpu"), ExpressionError::Product);
    assert_eq!(parse("2/cpu"), ExpressionError::DivisionByAmount);
    assert_eq!(parse("cpu/100m"), ExpressionError::DivisionByAmount);
    assert_eq!(parse("cpu/0"), ExpressionError::DivisionByZero);
    assert_eq!(parse("cpu/(1-1)"), ExpressionError::DivisionByZero);
    assert_eq!(parse("-1"), ExpressionError::Negative);
    assert_eq!(parse("0-100m"), ExpressionError::Negative);
    assert_eq!(parse("memory"), ExpressionError::OtherVariable(Variable::Memory));
    assert_eq!(
        Expression::parse("cpu", Variable::Memory).unwrap_err().to_string(),
        "cpu cannot be used here; want memory"
    );
}

#[test]
fn e14_bad_tokens_are_refused_and_not_read_as_nothing() {
    for (text, message) in [
        ("1.2.3", "\"1.2.3\" is no number"),
        ("1x", "\"1x\" has an unknown unit"),
        ("1Ei", "\"1Ei\" has an unknown unit"),
        ("1E", "\"1E\" has an unknown unit"),
        ("1mi", "\"1mi\" has an unknown unit"),
        ("9999999999999999999", "\"9999999999999999999\" is no number"),
        ("1e99", "\"1e99\" is no number"),
        ("cpus", "\"cpus\" is not known; want cpu, max or min"),
        ("cpu cpu", "at character 5: found \"cpu\"; want +, -, *, / or the end"),
        ("cpu+", "at character 5: found the end; want a number"),
        ("", "at character 1: found the end"),
        ("max(cpu)", "at character 8: found ')'; want \",\""),
        ("max(1,2,3)", "at character 8: found ','; want \")\""),
        ("(cpu", "at character 5: found the end; want \")\""),
        ("cpu;1", "at character 4: found ';'"),
        ("ü", "at character 1: found 'ü'"),
        ("900000T*10000", "a result is too large"),
    ] {
        let error = Expression::parse(text, Variable::Cpu)
            .and_then(|expression| expression.evaluate(Amount::parse("1").unwrap()).map(drop));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }
    let deep = format!("{}1{}", "(".repeat(60), ")".repeat(60));
    assert_eq!(Expression::parse(&deep, Variable::Cpu), Err(ExpressionError::TooDeep));
    assert_eq!(Expression::parse(&"1".repeat(513), Variable::Cpu), Err(ExpressionError::TooLong(513)));
}

#[test]
fn e14_memory_is_rounded_up_to_whole_bytes() {
    assert_eq!(result("memory/3", Variable::Memory, "100").as_deref(), Ok("34"));
    assert_eq!(result("0.5", Variable::Memory, "0").as_deref(), Ok("1"));
}

proptest::proptest! {
    #[test]
    fn nothing_panics(text in "[-+*/(), .0-9eEmkMGTPi%cpuaxnory]{0,60}") {
        if let Ok(expression) = Expression::parse(&text, Variable::Cpu) {
            for value in ["0", "1", "9223372036854775807", "1m"] {
                let _ = expression.evaluate(Amount::parse(value).unwrap());
            }
        }
    }
}
