//! Connection to the cluster, with the flags that kubectl has.

use std::path::PathBuf;

use kube::Client;

use super::rules::exit::{Exit, Stop};
use crate::{
    k8s::name::Namespace,
    runtime::client::{self, ClientOptions},
};

/// Flags of every command.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cluster options")]
pub(super) struct ConnectionArgs {
    /// Namespace of the Pods, workloads and requests. Default: the one of the context.
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// File that says how to reach the API server. Default: KUBECONFIG, ~/.kube/config, or the Pod's service account.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// User to act as, if you may.
    #[arg(long = "as", global = true, value_name = "USER")]
    act_as: Option<String>,
}

/// A cluster, and the namespace that is meant.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) namespace: String,
}

impl ConnectionArgs {
    /// From the words of a line that is still being typed.
    pub(super) fn among(words: &[String]) -> Self {
        let value = |flags: &[&str]| {
            words.iter().enumerate().find_map(|(i, word)| match flags.contains(&word.as_str()) {
                true => words.get(i + 1).cloned(),
                false => flags.iter().find_map(|flag| Some(word.strip_prefix(flag)?.strip_prefix('=')?.to_owned())),
            })
        };
        Self {
            namespace: value(&["-n", "--namespace"]),
            context: value(&["--context"]),
            kubeconfig: value(&["--kubeconfig"]).map(PathBuf::from),
            act_as: value(&["--as"]),
        }
    }

    /// Reads the kubeconfig. Nothing is sent yet.
    pub(super) async fn open(&self) -> Result<Connection, Stop> {
        let options = ClientOptions {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            act_as: self.act_as.clone(),
            user_agent: "kubectl-kruise",
            qps: 0.0,
            burst: 1,
        };
        let client = client::connect(&options).await.map_err(|e| Stop::new(Exit::NoAnswer, e.to_string()))?;
        let namespace = self.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let namespace = Namespace::parse(&namespace).map_err(|error| Stop::usage(format!("--namespace: {error}")))?;
        Ok(Connection { client, namespace: namespace.to_string() })
    }
}
