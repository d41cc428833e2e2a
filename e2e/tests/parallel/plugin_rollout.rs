//! `kubectl kruise rollout` and `set image`: what they say, what they write, and their exit codes.

use anyhow::{Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Look, PATIENCE, app, in_namespace, shell};
use serde_json::{Value, json};

use crate::clone_set::{CLONE_SET, clone_set, in_place, pulled, rolled_out, started};

#[tokio::test]
async fn set_image_changes_images_and_nothing_else() -> Result<()> {
    in_namespace("plugin-set", async |t| {
        let set = in_place("web", 0, vec![pulled("main"), app("side")])
            .with("/spec/template/spec/initContainers", json!([shell("init", "exit 0")]))
            .with("/spec/updateStrategy/partition", "50%");
        t.create(set).await?;
        let before = t.get(CLONE_SET, "web").await?;
        let second = format!("main={}", remote_tag("pause", "v2"));
        let answer = t.plugin_exits(0, &["set", "image", "cloneset", "web", &second, "--dry-run=server"]).await?;
        assert_eq!(answer.stdout, "cloneset.apps.kruise.io/web image updated (server dry run)\n");
        let answer =
            t.plugin_exits(0, &["set", "image", "clone/web", &second, "--dry-run=client", "-o", "json"]).await?;
        let shown: Value = serde_json::from_str(&answer.stdout)?;
        assert_eq!(shown.text("/spec/template/spec/containers/0/image"), remote_tag("pause", "v2"));
        assert_eq!(t.get(CLONE_SET, "web").await?["spec"], before["spec"], "a dry run keeps nothing");
        let answer = t.plugin_exits(0, &["set", "image", "clonesets.apps.kruise.io/web", &second]).await?;
        assert_eq!(answer.stdout, "cloneset.apps.kruise.io/web image updated\n");
        let expected = before.clone().with("/spec/template/spec/containers/0/image", remote_tag("pause", "v2"));
        assert_eq!(t.get(CLONE_SET, "web").await?["spec"], expected["spec"]);
        let answer = t.plugin_exits(0, &["set", "image", "cloneset", "-l", "absent=yes", &second]).await?;
        ensure!(answer.stderr.contains("No resources found in "), "{}", answer.stderr);
        let answer = t.plugin_exits(0, &["set", "image", "clone/web", &second]).await?;
        assert_eq!(answer.stdout, "cloneset.apps.kruise.io/web image unchanged\n");
        let all = format!("*={}", remote("busybox"));
        t.plugin_exits(0, &["set", "image", "clone/web", &all, "-o", "name"]).await?;
        let now = t.get(CLONE_SET, "web").await?;
        for container in ["initContainers/0", "containers/0", "containers/1"] {
            assert_eq!(now.text(&format!("/spec/template/spec/{container}/image")), remote("busybox"));
        }
        let answer = t.plugin_exits(5, &["set", "image", "clone/web", "man=x"]).await?;
        ensure!(answer.stderr.contains("unable to find container named \"man\""), "{}", answer.stderr);
        ensure!(answer.stderr.contains("it has main, side, init"), "{}", answer.stderr);
        t.plugin_exits(2, &["set", "image", "clone/web"]).await?;
        t.plugin_exits(2, &["set", "image", "deployment/web", "main=x"]).await?;
        t.plugin_exits(5, &["set", "image", "clone/absent", "main=x"]).await?;
        t.plugin_exits(3, &["set", "image", "clone/web", "main=x", "--as", "nobody"]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn history_and_undo_put_the_whole_template_back() -> Result<()> {
    in_namespace("plugin-undo", async |t| {
        let set = in_place("web", 1, vec![pulled("main")])
            .with("/metadata/annotations/kubernetes.io~1change-cause", "first try");
        started(t, set).await?;
        let first = t.get(CLONE_SET, "web").await?;
        let patch = json!({ "metadata": { "annotations": { "kubernetes.io/change-cause": "second try" } },
            "spec": { "template": { "metadata": { "labels": { "extra": "yes" } },
                "spec": { "containers": [app("main").with("/env", json!([{ "name": "A", "value": "b" }]))] } },
                "minReadySeconds": 1 } });
        t.patch(CLONE_SET, "web", patch).await?;
        let second = rolled_out(t, "web").await?;
        let history = t.plugin_exits(0, &["rollout", "history", "cloneset/web"]).await?.stdout;
        let rows: Vec<&str> = history.lines().collect();
        ensure!(
            rows[2].starts_with("1 ") && rows[2].contains("first try") && rows[2].contains(&remote("pause")),
            "{history}"
        );
        ensure!(rows[3].starts_with("2 ") && rows[3].contains("second try"), "{history}");
        let details = t.plugin_exits(0, &["rollout", "history", "clone", "web", "--revision=2"]).await?.stdout;
        for words in ["web with revision #2", "Change-Cause:  second try", "Pod Template:", "    - env:"] {
            ensure!(details.contains(words), "{words:?} in\n{details}");
        }
        let answer = t.plugin_exits(5, &["rollout", "history", "clone", "web", "--revision=7"]).await?;
        ensure!(answer.stderr.contains("unable to find specified revision 7"), "{}", answer.stderr);

        let answer = t.plugin_exits(0, &["rollout", "undo", "clone/web", "--dry-run=server"]).await?;
        assert_eq!(answer.stdout, "cloneset.apps.kruise.io/web rolled back to revision 1 (server dry run)\n");
        assert_eq!(t.get(CLONE_SET, "web").await?["spec"], second["spec"]);
        t.plugin_exits(0, &["rollout", "undo", "clone/web"]).await?;
        let back = rolled_out(t, "web").await?;
        assert_eq!(back["spec"]["template"], first["spec"]["template"], "as it was, and nothing more");
        assert_eq!(back.int("/spec/minReadySeconds"), 1, "only the template");
        assert_eq!(back.text("/status/updateRevision"), first.text("/status/updateRevision"));
        t.plugin_exits(0, &["rollout", "status", "clone/web", "--revision=3"]).await?;
        let answer = t.plugin_exits(1, &["rollout", "status", "clone/web", "--revision=2"]).await?;
        ensure!(
            answer.stdout.contains("desired revision (2) is different from the running revision"),
            "{}",
            answer.stdout
        );
        t.plugin_exits(0, &["rollout", "pause", "clone/web"]).await?;
        let answer = t.plugin_exits(1, &["rollout", "undo", "clone/web"]).await?;
        ensure!(answer.stderr.contains("you cannot rollback a paused cloneset"), "{}", answer.stderr);
        let answer = t.plugin_exits(1, &["rollout", "pause", "clone/web"]).await?;
        ensure!(answer.stderr.contains("clonesets.apps.kruise.io \"web\" is already paused"), "{}", answer.stderr);
        t.plugin_exits(0, &["rollout", "resume", "clone/web"]).await?;
        t.plugin_exits(1, &["rollout", "resume", "clone/web"]).await?;
        t.plugin_exits(5, &["rollout", "undo", "clone/absent"]).await?;
        t.plugin_exits(2, &["rollout", "undo", "deployment/web"]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_roll_out_past_its_deadline_is_exit_code_1_and_a_timeout_4() -> Result<()> {
    in_namespace("plugin-deadline", async |t| {
        let set = in_place("web", 1, vec![pulled("main")]).with("/spec/progressDeadlineSeconds", 3);
        started(t, set).await?;
        let absent = format!("main={}", remote_tag("pause", "absent"));
        t.plugin_exits(0, &["set", "image", "clone/web", &absent]).await?;
        let answer = t.plugin_exits(1, &["rollout", "status", "clone/web", "--timeout", "60s"]).await?;
        ensure!(answer.stdout.ends_with("cloneset \"web\" exceeded its progress deadline\n"), "{}", answer.stdout);
        t.patch(CLONE_SET, "web", json!({ "spec": { "progressDeadlineSeconds": null } })).await?;
        let seen = |o: &Value| {
            o.int("/status/observedGeneration") == o.int("/metadata/generation")
                && o.array("/status/conditions").iter().all(|c| c.text("/type") != "Progressing")
        };
        t.wait_for(CLONE_SET, "web", "to forget the deadline", PATIENCE, seen).await?;
        let answer = t.plugin_exits(4, &["rollout", "status", "clone/web", "--timeout", "5s"]).await?;
        ensure!(answer.stdout.contains("timed out waiting for cloneset \"web\" after "), "{}", answer.stdout);
        ensure!(
            answer.stdout.contains(&format!("kubectl kruise rollout undo cloneset/web -n {}", t.namespace)),
            "{}",
            answer.stdout
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_restart_replaces_pods_or_warns_that_it_does_not() -> Result<()> {
    in_namespace("plugin-restart-set", async |t| {
        let old = started(t, clone_set("web", 1, vec![app("main")])).await?;
        let answer = t.plugin_exits(0, &["rollout", "restart", "cloneset/web"]).await?;
        assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("cloneset.apps.kruise.io/web restarted\n", ""));
        t.plugin_exits(0, &["rollout", "status", "cloneset/web", "--timeout", "60s"]).await?;
        t.gone("Pod", old[0].text("/metadata/name")).await?;
        t.patch(CLONE_SET, "web", json!({ "spec": { "updateStrategy": { "type": "InPlaceIfPossible" } } })).await?;
        let answer = t.plugin_exits(0, &["rollout", "restart", "cloneset/web"]).await?;
        ensure!(answer.stderr.contains("kubectl kruise restart cloneset/web"), "{}", answer.stderr);
        Ok(())
    })
    .await
}
