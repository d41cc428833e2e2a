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
    /// Group to act as, beside the user of --as; may be given several times.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    act_as_groups: Vec<String>,
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
        let values = |flags: &[&str]| -> Vec<String> {
            let value = |(i, word): (usize, &String)| match flags.contains(&word.as_str()) {
                true => words.get(i + 1).cloned(),
                false => flags.iter().find_map(|flag| Some(word.strip_prefix(flag)?.strip_prefix('=')?.to_owned())),
            };
            words.iter().enumerate().filter_map(value).collect()
        };
        let value = |flags: &[&str]| values(flags).into_iter().next();
        Self {
            namespace: value(&["-n", "--namespace"]),
            context: value(&["--context"]),
            kubeconfig: value(&["--kubeconfig"]).map(PathBuf::from),
            act_as: value(&["--as"]),
            act_as_groups: values(&["--as-group"]),
        }
    }

    /// Reads the kubeconfig. Nothing is sent yet.
    pub(super) async fn open(&self) -> Result<Connection, Stop> {
        if !self.act_as_groups.is_empty() && self.act_as.is_none() {
            return Err(Stop::usage("--as-group: name a user too, with --as"));
        }
        let options = ClientOptions {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            act_as: self.act_as.clone(),
            act_as_groups: self.act_as_groups.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn groups_to_act_as_are_those_of_a_user() {
        let among = |line: &str| ConnectionArgs::among(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let args = among("restart --as jane --as-group dev --as-group=ops pod/");
        assert_eq!((args.act_as.as_deref(), args.act_as_groups.join(",")), (Some("jane"), "dev,ops".into()));
        let stop = among("status --as-group dev").open().await.err().expect("a group of nobody");
        assert_eq!((stop.exit, stop.message.as_str()), (Exit::Usage, "--as-group: name a user too, with --as"));
    }
}
