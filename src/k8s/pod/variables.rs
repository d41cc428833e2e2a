//! Environment variables of containers: what is read of them, from JSON and from protobuf alike.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

use super::{EndsWithJob, EnvironmentView, priority_of_key};
use crate::api::labels as keys;

/// A text of JSON that is not copied if it need not be.
#[derive(Default, Deserialize)]
struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireVariable<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    value: Option<Borrowed<'a>>,
    #[serde(borrow)]
    value_from: Option<WireSource<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSource<'a> {
    #[serde(borrow)]
    config_map_key_ref: Option<WireKey<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireKey<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
}

impl WireVariable<'_> {
    fn read(&self) -> Variable<'_> {
        let key = self.value_from.as_ref().and_then(|source| source.config_map_key_ref.as_ref());
        Variable {
            name: &self.name,
            value: self.value.as_ref().map_or("", |value| &value.0),
            key: key.map(|key| &*key.key),
        }
    }
}

/// An environment variable: its value, and the key of a ConfigMap that its value comes from.
#[derive(Clone, Copy)]
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    pub(super) value: &'a str,
    pub(super) key: Option<&'a str>,
}

/// What is read of a container's environment; all other variables are skipped.
pub(super) fn environment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<EnvironmentView, D::Error> {
    let variables = Option::<Vec<WireVariable<'de>>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(EnvironmentView::of(variables.iter().map(WireVariable::read)))
}

/// The EphemeralJob that is named in the environment of an ephemeral container.
pub(super) fn job_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<str>>, D::Error> {
    let variables = Option::<Vec<WireVariable<'de>>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(job_of(variables.iter().map(WireVariable::read)))
}

/// The same for variables that were read already.
pub(super) fn job_of<'a>(variables: impl DoubleEndedIterator<Item = Variable<'a>>) -> Option<Box<str>> {
    let mut of_jobs = variables.filter(|variable| variable.name == keys::ENV_EPHEMERAL_JOB);
    of_jobs.next_back().map(|variable| variable.value).filter(|id| (1..=LONGEST_ID).contains(&id.len())).map(Box::from)
}

/// No UID is longer.
const LONGEST_ID: usize = 63;
/// The longest name of an image that is kept of an environment variable, in bytes.
const LONGEST_IMAGE: usize = 1024;

impl EnvironmentView {
    pub(super) fn of<'a>(variables: impl Iterator<Item = Variable<'a>>) -> Self {
        let is_true = |value: &str| value.eq_ignore_ascii_case("true");
        let (mut env, mut ends) = (Self::default(), EndsWithJob::default());
        for Variable { name, value, key } in variables {
            match name {
                keys::ENV_LAUNCH_BARRIER => env.launch_priority = key.and_then(priority_of_key),
                keys::ENV_TERMINATE_SIDECAR => ends.is_switched_on = is_true(value),
                keys::ENV_TERMINATE_SIDECAR_WITH_IMAGE => {
                    ends.image = Some(value).filter(|image| (1..=LONGEST_IMAGE).contains(&image.len())).map(Box::from);
                }
                keys::ENV_IGNORE_EXIT_CODE => ends.ignores_exit_code = is_true(value),
                _ => {}
            }
        }
        if ends.is_switched_on || ends.image.is_some() {
            env.ends_with_job = Some(Box::new(ends));
        }
        env
    }
}
