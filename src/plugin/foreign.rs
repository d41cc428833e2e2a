//! Commands of OpenKruise's own plugin, whose executable has the same name: each says what to use instead.

use super::rules::{
    exit::{Exit, Stop},
    foreign,
};

/// A command of OpenKruise's plugin, which is not one of this plugin.
#[derive(Debug, clap::Args)]
pub(super) struct ForeignArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Fails.
pub(super) fn run(command: &str, args: &ForeignArgs) -> Result<Exit, Stop> {
    Err(Stop::usage(foreign::instead(command, &args.words)))
}
