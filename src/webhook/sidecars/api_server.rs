//! The version of the API server, which decides about some fields of sidecars. It is asked again and again: a cluster is
//! upgraded while we run. Every account may read it.

use std::{sync::Mutex, time::Duration};

use kube::Client;

use crate::{
    domain::kinds::sidecar_set::inject::ApiServer,
    runtime::{apply::said, client::check_version, clock, lock},
};

/// Between two questions.
const PERIOD: Duration = Duration::from_secs(180);
/// Between two questions while there is no answer.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// What one answer may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long an answer holds. In this time no cluster is upgraded by two minor versions.
const FRESH: Duration = Duration::from_secs(600);

/// What the API server has said of its version the last time, and when. The default: nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Said(Option<(Duration, (u32, u32))>);

impl Said {
    /// The version, unless it was said too long ago.
    fn version(self, now: Duration) -> ApiServer {
        self.0.filter(|(at, _)| now.saturating_sub(*at) < FRESH).map(|(_, version)| version)
    }
}

/// The API server, as this process knows it.
pub(super) struct Server {
    client: Client,
    said: Mutex<Said>,
}

impl Server {
    /// It has not been asked yet.
    pub(super) fn new(client: Client) -> Self {
        Self { client, said: Mutex::default() }
    }

    /// Its version, as far as it is known.
    pub(super) fn version(&self) -> ApiServer {
        lock(&self.said).version(clock::now().mono)
    }

    /// Asks for the version, for ever.
    pub(super) async fn follow(&self) {
        loop {
            let pause = if self.ask().await { PERIOD } else { AFTER_FAILURE };
            tokio::time::sleep(pause).await;
        }
    }

    /// Asks once. False: there was no answer that can be read.
    async fn ask(&self) -> bool {
        let answer = tokio::time::timeout(LIMIT, self.client.apiserver_version()).await;
        let version = match answer {
            Ok(Ok(info)) => check_version(&info).map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(said(&error)),
            Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
        };
        match version {
            Ok(version) => {
                *lock(&self.said) = Said(Some((clock::now().mono, version)));
                true
            }
            Err(error) => {
                tracing::debug!(error, "the version of the API server is not known");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api;

    #[test]
    fn a_version_holds_for_a_while() {
        let second = Duration::from_secs(1);
        let said = Said(Some((second * 100, (1, 34))));
        for (said, now, wanted) in [
            (Said::default(), 100, None),
            (said, 100, Some((1, 34))),
            (said, 699, Some((1, 34))),
            (said, 700, None),
            // Another one was quicker.
            (said, 99, Some((1, 34))),
        ] {
            assert_eq!(said.version(second * now), wanted, "{said:?} at {now} s");
        }
    }

    #[tokio::test]
    async fn what_the_api_server_says_is_known_and_no_answer_leaves_it_unknown() {
        let silent = Server::new(fake_api::nobody());
        assert_eq!((silent.ask().await, silent.version()), (false, None));
        for (minor, wanted) in [("34", Some((1, 34))), ("33+", Some((1, 33))), ("odd", None)] {
            let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                assert_eq!(request.uri().path(), "/version");
                let version = json!({"major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0"), "gitCommit": "",
                    "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
                let body = kube::client::Body::from(version.to_string().into_bytes());
                async move { Ok::<_, tower::BoxError>(http::Response::builder().status(200).body(body).unwrap()) }
            });
            let server = Server::new(Client::new(service, "default"));
            assert_eq!((server.ask().await, server.version()), (wanted.is_some(), wanted), "{minor}");
        }
    }
}
