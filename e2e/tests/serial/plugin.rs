//! `kubectl kruise doctor` on an installation with something missing.

use anyhow::{Result, ensure};
use e2e::kit::{in_namespace, restoring};

use crate::away::Member;

#[tokio::test]
async fn doctor_names_the_node_without_a_daemon() -> Result<()> {
    in_namespace("doctor-daemon", async |t| {
        t.node()
            .without_daemon(async || {
                let answer = t.plugin_exits(1, &["doctor"]).await?;
                for words in
                    ["FAIL   daemon", "node-a: no daemon runs there", "-> kubectl -n kruise-system describe daemonset"]
                {
                    ensure!(answer.stdout.contains(words), "{words:?} in\n{}", answer.stdout);
                }
                Ok(())
            })
            .await
    })
    .await
}

pub(crate) async fn doctor_sees_a_webhook_that_does_not_answer(away: Member<'_>) -> Result<()> {
    in_namespace("doctor-webhook", async |t| {
        let checked = async {
            away.begin(t).await?;
            // One that is ending still answers on connections that are open.
            t.node().gone("control-plane=webhook", |_| true).await?;
            let answer = t.plugin_exits(1, &["doctor"]).await?;
            for words in ["nobody answers behind the webhook's Service", "failed calling webhook"] {
                ensure!(answer.stdout.contains(words), "{words:?} in\n{}", answer.stdout);
            }
            // Not refused: the cluster cannot answer.
            t.plugin_exits(6, &["restart", "pod/web", "-c", "main"]).await?;
            Ok(())
        };
        restoring(checked, away.end(t)).await
    })
    .await
}
