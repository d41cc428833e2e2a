//! What users see: `kubectl get`, `describe` and `explain` as committed texts. `KRUISE_E2E_UPDATE=1` writes them anew.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use e2e::kit::{Build, app, crr, in_namespace, pod};

/// Compares with tests/output/NAME.txt.
fn snapshot(name: &str, text: &str) -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/output").join(format!("{name}.txt"));
    if std::env::var_os("KRUISE_E2E_UPDATE").is_some() {
        std::fs::create_dir_all(file.parent().expect("a file has a directory"))?;
        std::fs::write(&file, text)?;
        return Ok(());
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    if expected == text {
        return Ok(());
    }
    for (number, (old, new)) in expected.lines().zip(text.lines()).enumerate() {
        ensure!(old == new, "{}:{}: expected\n{old}\ngot\n{new}", file.display(), number + 1);
    }
    bail!("{} differs in length; KRUISE_E2E_UPDATE=1 writes it anew. Got:\n{text}", file.display())
}

/// A text without what differs from run to run: every word that holds one of `secrets` becomes its mark, times become
/// TIME, ages AGE, and runs of blanks one blank.
fn masked(text: &str, secrets: &[(&str, &str)]) -> String {
    let word = |word: &str| {
        let mut word = word.to_owned();
        for (secret, mark) in secrets {
            word = word.replace(secret, mark);
        }
        if word.trim_matches('"').parse::<jiff::Timestamp>().is_ok() {
            return "TIME".to_owned();
        }
        let is_age =
            word.len() > 1 && word.ends_with('s') && word[..word.len() - 1].chars().all(|c| c.is_ascii_digit());
        if is_age { "AGE".to_owned() } else { word }
    };
    let line = |line: &str| {
        let indent: String = line.chars().take_while(|c| *c == ' ').collect();
        let words: Vec<String> = line.split_whitespace().map(word).collect();
        indent + &words.join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[tokio::test]
async fn get_and_describe_read_well() -> Result<()> {
    in_namespace("output", async |t| {
        let before = t.start(pod("web", vec![app("main"), app("other")])).await?;
        let old = e2e::kit::Container::all(&before)["main"].id.clone();
        t.create(crr("restart-main", "web", &["main"]).with("/spec/activeDeadlineSeconds", 60)).await?;
        t.succeeded("restart-main").await?;
        t.wait_events("ContainerRecreateRequest", "restart-main", |e| !e.is_empty()).await?;
        let done = t
            .wait_for("ContainerRecreateRequest", "restart-main", "to be settled", e2e::kit::PATIENCE, |o| {
                o.pointer("/metadata/labels/crr.apps.kruise.io~1active").is_none()
            })
            .await?;
        let new = t.containers("web").await?["main"].id.clone();
        let secrets = [
            (t.namespace.as_str(), "NAMESPACE"),
            (old.as_str(), "OLD-INSTANCE"),
            (new.as_str(), "NEW-INSTANCE"),
            (e2e::kit::Look::text(&before, "/metadata/uid"), "POD-UID"),
            (e2e::kit::Look::text(&done, "/metadata/uid"), "UID"),
        ];
        snapshot("get", &masked(&t.kubectl(&["get", "crr"]).await?, &secrets))?;
        snapshot("get-wide", &masked(&t.kubectl(&["get", "crr", "-o", "wide"]).await?, &secrets))?;
        let describe = t.kubectl(&["describe", "crr", "restart-main", "--show-events=false"]).await?;
        let steady = |l: &&str| !["Resource Version:", "Generation:"].iter().any(|f| l.trim_start().starts_with(f));
        let describe = describe.lines().filter(steady).collect::<Vec<_>>().join("\n");
        snapshot("describe", &masked(&describe, &secrets))
    })
    .await
}

#[tokio::test]
async fn explain_reads_well() -> Result<()> {
    in_namespace("explain", async |t| {
        for (name, path) in [
            ("explain", "crr"),
            ("explain-spec", "crr.spec"),
            ("explain-strategy", "crr.spec.strategy"),
            ("explain-status", "crr.status"),
            ("explain-states", "crr.status.containerRecreateStates"),
            ("explain-wr", "wr"),
            ("explain-wr-spec", "wr.spec"),
            ("explain-wr-status", "wr.status"),
        ] {
            let text = t.kubectl(&["explain", path]).await?;
            ensure!(!text.contains("<no description>"), "{path} lacks a description:\n{text}");
            snapshot(name, &text)?;
        }
        Ok(())
    })
    .await
}
