//! `kubectl kruise`: what it makes, what it says, and the exit codes that scripts rely on.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::cmd::{CommandExt, cmd, kubectl, signal};
use e2e::kit::{
    Build, Container, Look, PATIENCE, Test, app, in_namespace, plugin_command, pod, poll, restart_of, shell, stubborn,
    workload,
};
use serde_json::{Value, json};

const CRR: &str = "ContainerRecreateRequest";

/// The name of the only request of the namespace.
async fn only_request(t: &Test) -> Result<String> {
    let all = t.list(CRR, "").await?;
    ensure!(all.len() == 1, "{} requests", all.len());
    Ok(all[0].text("/metadata/name").to_owned())
}

#[tokio::test]
async fn restart_tells_each_step_in_plain_lines() -> Result<()> {
    in_namespace("plugin-restart", async |t| {
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        let before = t.containers("web").await?;
        let args =
            ["restart", "pod/web", "-c", "main", "--wait", "--timeout", "60s", "--active-deadline-seconds", "90"];
        let answer = t.plugin_exits(0, &args).await?;
        let name = only_request(t).await?;
        let lines: Vec<&str> = answer.stdout.lines().collect();
        assert_eq!(lines[0], format!("containerrecreaterequest.apps.kruise.io/{name} created"));
        ensure!(lines.iter().any(|l| l.ends_with("web/main  restarted")), "{lines:?}");
        let last = lines.last().context("a last line")?;
        ensure!(last.starts_with(&format!("containerrecreaterequest.apps.kruise.io/{name} succeeded in ")), "{last}");
        ensure!(!answer.stdout.contains('\u{1b}'), "a file wants no colours: {:?}", answer.stdout);
        assert_eq!(answer.stderr, "");
        let after = t.containers("web").await?;
        assert_eq!((after["main"].restarts, &after["other"]), (1, &before["other"]));
        let request = t.get(CRR, &name).await?;
        assert_eq!(request.int("/spec/activeDeadlineSeconds"), 90);
        ensure!(name.starts_with("web-"), "{name}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn objects_go_to_standard_output_and_progress_elsewhere() -> Result<()> {
    in_namespace("plugin-output", async |t| {
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        let answer = t.plugin_exits(0, &["restart", "pod", "web", "--wait", "-o", "json"]).await?;
        let done: Value = serde_json::from_str(&answer.stdout)?;
        assert_eq!(done.text("/status/phase"), "Completed");
        let states = done.array("/status/containerRecreateStates");
        let names: Vec<&str> = states.iter().map(|s| s.text("/name")).collect();
        assert_eq!(names, ["main", "other"], "without -c all regular containers");
        ensure!(answer.stderr.contains("web/other  restarted"), "{}", answer.stderr);
        ensure!(!done.has("/metadata/managedFields"), "nobody wants to read them");
        let name = done.text("/metadata/name");

        let answer = t.plugin_exits(0, &["status", name, "-o", "name"]).await?;
        assert_eq!(answer.stdout, format!("containerrecreaterequest.apps.kruise.io/{name}\n"));
        let answer = t.plugin_exits(0, &["status", "-o", "yaml"]).await?;
        ensure!(
            answer.stdout.contains("kind: List") && answer.stdout.contains("phase: Completed"),
            "{}",
            answer.stdout
        );
        let answer = t.plugin_exits(0, &["status"]).await?;
        let row: Vec<&str> = answer.stdout.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(row[..4], [&format!("crr/{name}"), "pod/web", "2/2", "Succeeded"]);
        let answer = t.plugin_exits(0, &["status", "pod/web", "--wait"]).await?;
        ensure!(answer.stdout.contains(" succeeded in "), "one that has ended is told at once: {}", answer.stdout);

        let answer = t.plugin_exits(0, &["describe", name]).await?;
        for words in
            ["Result:      Succeeded", "stop signal sent", "new instance ready", "request completed", "replaced by"]
        {
            ensure!(answer.stdout.contains(words), "{words:?} in\n{}", answer.stdout);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_workload_is_restarted_a_few_pods_at_a_time() -> Result<()> {
    in_namespace("plugin-workload", async |t| {
        t.create(workload("Deployment", "api", 3, vec![app("main"), app("other")])).await?;
        t.wait_for("Deployment", "api", "to be ready", PATIENCE, |o| o.int("/status/readyReplicas") == 3).await?;
        let args = ["restart", "deployment/api", "-c", "main", "--max-unavailable", "2", "--wait"];
        let answer = t.plugin_exits(0, &args).await?;
        ensure!(answer.stdout.starts_with("workloadrestart.kruise.rs/api-"), "{}", answer.stdout);
        ensure!(answer.stdout.contains("deployment/api  3 of 3 Pods restarted"), "{}", answer.stdout);
        ensure!(
            answer.stdout.trim_end().lines().last().is_some_and(|l| l.contains(" succeeded in ")),
            "{}",
            answer.stdout
        );
        for pod in t.list("Pod", "app=api").await? {
            let containers = Container::all(&pod);
            assert_eq!((containers["main"].restarts, containers["other"].restarts), (1, 0));
        }
        let made = t.list("WorkloadRestart", "").await?;
        assert_eq!((made.len(), made[0].int("/spec/maxUnavailable")), (1, 2));
        let name = made[0].text("/metadata/name");

        let all = t.plugin_exits(0, &["status"]).await?.stdout;
        assert_eq!(all.lines().count(), 2, "the requests of a WorkloadRestart are its own affair:\n{all}");
        let row: Vec<&str> = all.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(row[..4], [&format!("wr/{name}"), "deployment/api", "3/3", "Succeeded"]);
        let with_parts = t.plugin_exits(0, &["status", name]).await?.stdout;
        assert_eq!(with_parts.lines().count(), 5, "{with_parts}");
        let text = t.plugin_exits(0, &["describe", name]).await?.stdout;
        for words in ["Kind:        WorkloadRestart", "restart completed", "Complete", "3 of 3 Pods"] {
            ensure!(text.contains(words), "{words:?} in\n{text}");
        }
        t.plugin_exits(2, &["restart", "-l", "app=api", "--wait", "--dry-run=server"]).await?;
        let answer = t.plugin_exits(0, &["restart", "-l", "app=api", "--dry-run=server", "-o", "json"]).await?;
        let dry: Value = serde_json::from_str(&answer.stdout)?;
        assert_eq!(dry.text("/spec/selector/matchLabels/app"), "api");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_dry_run_keeps_nothing() -> Result<()> {
    in_namespace("plugin-dry-run", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        let answer = t.plugin_exits(0, &["restart", "pod/web", "--dry-run=server", "-o", "yaml"]).await?;
        let made: Value = serde_yaml::from_str(&answer.stdout)?;
        ensure!(made.has("/spec/containers/0/statusContext"), "admission has answered: {}", answer.stdout);
        let answer = t.plugin_exits(0, &["restart", "pod/web", "--dry-run=server"]).await?;
        ensure!(answer.stdout.ends_with(" created (server dry run)\n"), "{}", answer.stdout);
        let answer = t.plugin_exits(0, &["restart", "pod/web", "--dry-run=client", "-o", "json"]).await?;
        let manifest: Value = serde_json::from_str(&answer.stdout)?;
        assert_eq!(manifest["spec"], json!({ "podName": "web", "containers": [{ "name": "main" }] }));
        assert_eq!(t.list(CRR, "").await?.len(), 0);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn each_way_to_go_wrong_has_its_exit_code() -> Result<()> {
    in_namespace("plugin-codes", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        let said = async |code: i32, args: &[&str], words: &str| {
            let answer = t.plugin_exits(code, args).await?;
            ensure!(answer.stderr.contains(words), "{words:?} is not in: {}", answer.stderr);
            Ok(())
        };
        said(2, &["restart", "web"], "want TYPE/NAME, for example pod/web").await?;
        said(2, &["restart", "pod/web", "--wiat"], "--wait").await?;
        said(2, &["create", "crr", "a", "--pod=web"], "kubectl kruise restart pod/NAME").await?;
        said(2, &["scale", "cloneset/web", "--replicas=3"], "Instead: kubectl scale").await?;
        said(2, &["set", "env", "cloneset/web", "A=b"], "Instead: kubectl patch").await?;
        said(2, &["rollout", "approve", "rollout/web"], "kruise-rs does not serve Rollouts").await?;
        said(2, &["describe", "rollout", "web"], "kruise-rs does not serve Rollouts").await?;
        said(2, &["status", "--as-group", "dev"], "--as").await?;
        said(3, &["restart", "pod/web", "-c", "absent"], "it has main").await?;
        said(3, &["restart", "pod/absent", "-c", "main"], "is no Pod in namespace").await?;
        said(3, &["restart", "pod/web", "-c", "main", "--as", "nobody"], "cannot create").await?;
        said(5, &["restart", "pod/absent"], "pods \"absent\" not found").await?;
        said(5, &["status", "absent"], "no request absent").await?;
        said(5, &["cancel", "crr/absent"], "no ContainerRecreateRequest absent").await?;
        said(5, &["cancel", "crr/absent", "crr/nowhere"], "no ContainerRecreateRequest nowhere").await?;
        said(3, &["status", "absent", "--as", "nobody"], "cannot get").await?;
        said(0, &["restart", "-l", "app=absent"], "Warning: no Pod in namespace").await?;
        let answer = t.plugin_exits(5, &["restart", "-l", "app=absent", "--wait"]).await?;
        ensure!(answer.stdout.contains("no Pod matches -l app=absent"), "{}", answer.stdout);
        // Nothing is begun when a later part is refused.
        said(3, &["restart", "pod/web", "pod/absent", "-c", "main"], "is no Pod in namespace").await?;
        assert_eq!(t.list(CRR, "").await?.len(), 0);

        let file = t.paths.state.join("nobody.kubeconfig");
        std::fs::write(
            &file,
            "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
             users: [{name: u, user: {}}], clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]}",
        )?;
        let nobody = file.display().to_string();
        said(6, &["status", "--kubeconfig", &nobody], "refused").await?;
        said(6, &["status", "--context", "absent"], "absent").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_failed_restart_is_exit_code_1() -> Result<()> {
    in_namespace("plugin-failed", async |t| {
        // It ends with 0, and kubelet does not start it again.
        t.start(pod("job", vec![app("main"), app("other")]).with("/spec/restartPolicy", "OnFailure")).await?;
        let answer = t.plugin_exits(1, &["restart", "pod/job", "-c", "main", "--wait"]).await?;
        ensure!(answer.stderr.contains("Warning: ") && answer.stderr.contains("OnFailure"), "{}", answer.stderr);
        ensure!(answer.stdout.contains(" failed after "), "{}", answer.stdout);
        let name = only_request(t).await?;
        let answer = t.plugin_exits(1, &["status", &name, "--wait"]).await?;
        ensure!(answer.stdout.contains("job/main  failed: "), "{}", answer.stdout);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_timeout_and_an_interrupt_leave_the_restart_running() -> Result<()> {
    in_namespace("plugin-timeout", async |t| {
        t.start(pod("web", vec![stubborn("main")]).with("/spec/terminationGracePeriodSeconds", 25)).await?;
        let answer = t.plugin_exits(4, &["restart", "pod/web", "--wait", "--timeout", "2s"]).await?;
        let name = only_request(t).await?;
        let hint = format!("kubectl kruise status {name} -n {} --wait", t.namespace);
        ensure!(answer.stdout.contains(&hint), "{}", answer.stdout);

        let args = ["status", &name, "--wait", "-n", &t.namespace];
        let mut child = plugin_command(&t.paths, &args)?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("standard output")?).lines();
        let first = lines.next().context("a first line")??;
        ensure!(first.contains("web/main"), "{first}");
        signal(child.id(), "INT")?;
        let rest: Vec<String> = lines.collect::<std::io::Result<_>>()?;
        assert_eq!(child.wait()?.code(), Some(130));
        ensure!(
            rest.iter().any(|l| l.contains("stopped watching")) && rest.iter().any(|l| l.contains(&hint)),
            "{rest:?}"
        );

        t.plugin_exits(0, &["status", &name, "--wait"]).await?;
        assert_eq!(t.containers("web").await?["main"].restarts, 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn cancel_says_what_it_undoes() -> Result<()> {
    in_namespace("plugin-cancel", async |t| {
        let main = shell("main", "").with("/lifecycle/preStop/exec/command", json!(["sleep", "1000"]));
        t.start(pod("web", vec![main, app("other")]).with("/spec/terminationGracePeriodSeconds", 600)).await?;
        let before = t.containers("web").await?;
        t.plugin_exits(0, &["restart", "pod/web", "-c", "main,other"]).await?;
        let name = only_request(t).await?;
        t.wait_for(CRR, &name, "to run the hook", PATIENCE, |o| {
            o.has("/status/containerRecreateStates/0/hookStartedAt")
        })
        .await?;
        let row = t.plugin_exits(0, &["status", &name]).await?.stdout;
        ensure!(row.contains("Running") && row.contains("preStop"), "{row}");
        let answer = t.plugin_exits(0, &["cancel", "--all", "--dry-run"]).await?;
        ensure!(answer.stdout.contains("cancelled (server dry run)"), "{}", answer.stdout);
        let answer = t.plugin_exits(0, &["cancel", &name]).await?;
        for words in ["container main: its preStop hook is cancelled", "container other: was not touched"] {
            ensure!(answer.stdout.contains(words), "{words:?} in\n{}", answer.stdout);
        }
        t.wait(CRR, &name, "to be gone", PATIENCE, |o| o.is_none()).await?;
        assert_eq!(t.containers("web").await?, before, "nothing was stopped");

        t.plugin_exits(0, &["restart", "pod/web", "-c", "other", "--wait"]).await?;
        let name = only_request(t).await?;
        let answer = t.plugin_exits(0, &["cancel", &name]).await?;
        ensure!(answer.stdout.contains("has ended already (succeeded) and is kept"), "{}", answer.stdout);
        t.get(CRR, &name).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_terminal_sees_the_picture_move() -> Result<()> {
    in_namespace("plugin-terminal", async |t| {
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        let plugin = plugin_command(&t.paths, &["restart", "pod/web", "--wait", "-n", &t.namespace])?;
        // `script` gives it a terminal.
        let line: Vec<String> = std::iter::once(plugin.get_program())
            .chain(plugin.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let mut command = cmd("script", ["-qefc", &format!("stty cols 100; {}", line.join(" ")), "/dev/null"]);
        for (name, value) in plugin.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.env("TERM", "xterm-256color");
        let answer = t.run(command).await?;
        assert_eq!(answer.code, Some(0), "{}", answer.stdout);
        ensure!(answer.stdout.contains("\u{1b}[32m✓"), "a green mark: {:?}", answer.stdout);
        ensure!(answer.stdout.contains("\u{1b}[1A") || answer.stdout.contains("\u{1b}[2K"), "lines are drawn anew");
        ensure!(
            answer.stdout.trim_end().lines().last().is_some_and(|l| l.contains(" succeeded in ")),
            "{}",
            answer.stdout
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn doctor_finds_a_healthy_installation_healthy() -> Result<()> {
    in_namespace("plugin-doctor", async |t| {
        // Tests beside this one change what it looks at, each for a moment.
        let answer = poll("all to be well", PATIENCE, async || {
            let answer = t.plugin_exits(0, &["doctor"]).await?;
            let last = answer.stdout.lines().last().unwrap_or_default();
            ensure!(last.ends_with(" ok, 0 to look at, 0 failed, 0 unknown"), "{}", answer.stdout);
            Ok(answer)
        })
        .await?;
        for check in [
            "API server",
            "custom resource",
            "manager",
            "webhook configuration",
            "webhook CA",
            "webhook endpoints",
            "serving certificate",
            "admission",
            "admission policies",
            "limits of accounts",
            "rights of accounts",
            "daemon",
            "runtime socket",
            "versions",
            "feature gates",
            "leader",
            "your rights",
        ] {
            ensure!(answer.stdout.contains(&format!("ok   {check} ")), "{check} in\n{}", answer.stdout);
        }
        poll("all to be well in JSON too", PATIENCE, async || {
            let answer = t.plugin_exits(0, &["doctor", "-o", "json"]).await?;
            let findings: Vec<Value> = serde_json::from_str(&answer.stdout)?;
            ensure!(!findings.is_empty() && findings.iter().all(|f| f.text("/verdict") == "ok"), "{findings:?}");
            Ok(())
        })
        .await?;
        assert_eq!(t.list(CRR, "").await?.len(), 0, "it leaves nothing behind");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn doctor_without_rights_says_what_it_could_not_see() -> Result<()> {
    in_namespace("plugin-doctor-blind", async |t| {
        let answer = t.plugin_exits(0, &["doctor", "--as", "nobody"]).await?;
        for words in ["unknown   daemon", "unknown   leader", "not permitted to read ", "you may not get pods"] {
            ensure!(answer.stdout.contains(words), "{words:?} in\n{}", answer.stdout);
        }
        ensure!(answer.stdout.contains("ok        custom resource"), "everybody may read discovery\n{}", answer.stdout);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_user_of_one_namespace_needs_few_rights() -> Result<()> {
    in_namespace("plugin-rights", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        for (kind, name) in [("role", "restarter"), ("rolebinding", "restarter")] {
            let args: &[&str] = match kind {
                "role" => &[
                    "create",
                    kind,
                    name,
                    "--verb=create,get,list,watch,delete",
                    "--resource=containerrecreaterequests.apps.kruise.io",
                ],
                _ => &["create", kind, name, "--role=restarter", "--user=jane"],
            };
            t.kubectl(args).await?;
        }
        for verb in ["create", "get", "list", "watch", "delete"] {
            t.may("jane", verb, "containerrecreaterequests.apps.kruise.io").await?;
        }
        t.plugin_exits(3, &["restart", "pod/web", "--as", "jane"]).await?;
        t.plugin_exits(0, &["restart", "pod/web", "-c", "main", "--wait", "--as", "jane"]).await?;
        let name = only_request(t).await?;
        let answer = t.plugin_exits(0, &["status", "--as", "jane"]).await?;
        ensure!(answer.stderr.contains("no permission to list workloadrestarts.kruise.rs"), "{}", answer.stderr);
        t.plugin_exits(0, &["describe", &name, "--as", "jane"]).await?;
        t.plugin_exits(0, &["cancel", &name, "--as", "jane"]).await?;
        let now = Container::all(&t.ready("web").await?);
        assert_eq!(now["main"].restarts, 1);

        // What a WorkloadRestart would make again is left to who may delete that.
        let slow = shell("main", "").with("/lifecycle/preStop/exec/command", json!(["sleep", "1000"]));
        t.start(pod("slow", vec![slow]).with("/spec/terminationGracePeriodSeconds", 600)).await?;
        t.create(restart_of("roll", "Pod", "slow", json!({}))).await?;
        t.wait_for("WorkloadRestart", "roll", "to restart its Pod", PATIENCE, |o| o.int("/status/restarting") == 1)
            .await?;
        let owned = t.list(CRR, "kruise.rs/workload-restart").await?;
        let owned = owned.first().context("a request")?.text("/metadata/name");
        let answer = t.plugin_exits(3, &["cancel", "--all", "--as", "jane"]).await?;
        for words in [owned, "WorkloadRestart roll would make it again", "kubectl kruise cancel wr/roll"] {
            ensure!(answer.stderr.contains(words), "{words:?} in\n{}", answer.stderr);
        }
        t.plugin_exits(1, &["cancel", owned, "--as", "jane"]).await?;
        ensure!(!t.get(CRR, owned).await?.has("/metadata/deletionTimestamp"), "it is left alone");
        t.plugin_exits(0, &["cancel", "--all"]).await?;
        t.wait(CRR, owned, "to be gone", PATIENCE, |o| o.is_none()).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn tab_completes_behind_kubectl_kruise() -> Result<()> {
    in_namespace("plugin-tab", async |t| {
        let plugin = plugin_command(&t.paths, &[])?;
        let complete = async |words: &[&str]| {
            let mut command = kubectl(&t.paths, ["__complete", "kruise"]);
            command.args(words);
            for (name, value) in plugin.get_envs() {
                command.env(name, value.unwrap_or_default());
            }
            let answer = t.run(command).await?;
            ensure!(answer.ok, "{}", answer.stderr);
            Ok(answer.stdout)
        };
        let offered = complete(&["rest"]).await?;
        ensure!(offered.starts_with("restart\t") && offered.trim_end().ends_with(":4"), "{offered}");
        let offered = complete(&["restart", "depl"]).await?;
        assert_eq!(offered, "deployment/\n:6\n");
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        // What the API server has to answer it gives up after two seconds.
        for (words, wanted) in [
            (&["restart", "-n", &t.namespace, "pod/w"][..], "pod/web\n:4\n"),
            (&["restart", "-n", &t.namespace, "pod/web", "-c", ""][..], "main\nother\n:4\n"),
        ] {
            poll("an answer in time", PATIENCE, async || {
                let offered = complete(words).await?;
                ensure!(offered == wanted, "{offered:?}, want {wanted:?}");
                Ok(())
            })
            .await?;
        }
        let script = plugin_command(&t.paths, &["completion", "bash"])?.text()?;
        ensure!(script.contains("complete -F") && script.contains("max-unavailable"), "{script}");
        Ok(())
    })
    .await
}
