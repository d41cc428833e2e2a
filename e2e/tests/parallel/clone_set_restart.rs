//! Updates in place and ContainerRecreateRequests of one container at the same time: no instance is stopped twice, and
//! both come to their end.

use std::ops::RangeInclusive;

use anyhow::{Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Container, Look, PATIENCE, RuntimeEvents, Test, condition, in_namespace, shell};
use serde_json::{Value, json};

use crate::clone_set::{CLONE_SET, image, in_place, rolled_out, set_image, started};

const CRR: &str = "ContainerRecreateRequest";
const GRACE: &str = "/metadata/annotations/apps.kruise.io~1inplace-update-grace";

/// A CloneSet of one Pod. Its container `main` reads its environment from an annotation, writes down each start and each
/// stop signal, and ends after one when `/kept/go` is there; `side` holds the volume.
fn reluctant() -> Value {
    let kept = json!([{ "name": "kept", "mountPath": "/kept" }]);
    let script = "echo \"$CFG\" >> /kept/starts\n\
        trap 'echo TERM >> /kept/stops; asked=yes' TERM\n\
        while [ -z \"$asked\" ] || [ ! -e /kept/go ]; do sleep 0.1; done";
    let env = json!([{ "name": "CFG", "valueFrom": { "fieldRef": { "fieldPath": "metadata.annotations['cfg']" } } }]);
    let main = json!({ "name": "main", "image": remote("busybox"), "env": env, "volumeMounts": kept,
        "command": ["sh", "-c", script] });
    in_place("web", 1, vec![main, shell("side", "").with("/volumeMounts", kept)])
        .with("/spec/template/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]))
        .with("/spec/template/spec/terminationGracePeriodSeconds", 120)
        .with("/spec/template/metadata/annotations/cfg", "one")
}

struct Running<'a> {
    t: &'a Test,
    pod: String,
    before: Value,
    events: RuntimeEvents,
}

impl<'a> Running<'a> {
    async fn start(t: &'a Test, set: Value) -> Result<Self> {
        let events = RuntimeEvents::listen()?;
        let before = started(t, set).await?.remove(0);
        Ok(Self { t, pod: before.text("/metadata/name").to_owned(), before, events })
    }

    /// Until the stop signal has reached the container for the first time.
    async fn until_asked(&self) -> Result<()> {
        let script = "for i in $(seq 600); do [ -s /kept/stops ] && exit 0; sleep 0.1; done; exit 1";
        self.t.exec(&self.pod, "side", script).await.map(drop)
    }

    async fn let_go(&self) -> Result<()> {
        self.t.exec(&self.pod, "side", "touch /kept/go").await.map(drop)
    }

    async fn request(&self, name: &str) -> Result<()> {
        self.t.restart(name, &self.pod, &["main"]).await.map(drop)
    }

    async fn request_taken_up(&self, name: &str) -> Result<()> {
        let taken = |o: &Value| !o.text("/status/phase").is_empty() && o.text("/status/phase") != "Pending";
        self.t.wait_for(CRR, name, "to be taken up", PATIENCE, taken).await.map(drop)
    }

    async fn annotate(&self, value: &str) -> Result<()> {
        let patch = json!({ "spec": { "template": { "metadata": { "annotations": { "cfg": value } } } } });
        self.t.patch(CLONE_SET, "web", patch).await?;
        // so that it is there when the container starts
        let there = |p: &Value| p.text("/metadata/annotations/cfg") == value;
        self.t.wait_for("Pod", &self.pod, "to have the annotation", PATIENCE, there).await.map(drop)
    }

    async fn new_image(&self) -> Result<()> {
        let second = remote_tag("busybox", "v2");
        set_image(self.t, "web", "main", &second).await?;
        let there = |p: &Value| image(p, "main") == second;
        self.t.wait_for("Pod", &self.pod, "to have the image", PATIENCE, there).await.map(drop)
    }

    /// Both are at their end, and so many instances have been stopped, each once.
    async fn ends(&self, request: &str, restarts: RangeInclusive<i64>) -> Result<Value> {
        let done = self.t.succeeded(request).await?;
        rolled_out(self.t, "web").await?;
        let after = self.t.ready(&self.pod).await?;
        assert_eq!(after.text("/metadata/uid"), self.before.text("/metadata/uid"));
        let (old, new) = (Container::all(&self.before), Container::all(&after));
        let count = new["main"].restarts;
        ensure!(restarts.contains(&count), "{count} restarts, want {restarts:?}; the request: {}", done["status"]);
        assert_eq!(new["side"], old["side"], "the other container");
        ensure!(!self.events.exits(&old["main"].id).is_empty(), "the first instance has ended");
        ensure!(self.events.exits(&new["main"].id).is_empty(), "the last instance runs");
        let written = self.t.exec(&self.pod, "side", "wc -l < /kept/starts; wc -l < /kept/stops").await?;
        let written: Vec<i64> = written.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        assert_eq!(written, [count + 1, count], "starts and stop signals that the container has written down");
        Ok(after)
    }

    async fn configuration(&self) -> Result<String> {
        self.t.exec(&self.pod, "side", "tail -n 1 /kept/starts").await
    }
}

#[tokio::test]
async fn a_request_while_the_image_is_changed_stops_nothing_a_second_time() -> Result<()> {
    in_namespace("crr-after-image", async |t| {
        let web = Running::start(t, reluctant()).await?;
        web.new_image().await?;
        web.until_asked().await?;
        web.request("once").await?;
        web.request_taken_up("once").await?;
        web.let_go().await?;
        let after = web.ends("once", 1..=1).await?;
        assert_eq!(image(&after, "main"), remote_tag("busybox", "v2"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_image_that_is_changed_while_a_request_stops_the_container_comes_up_with_it() -> Result<()> {
    in_namespace("image-after-crr", async |t| {
        let web = Running::start(t, reluctant()).await?;
        web.request("once").await?;
        web.until_asked().await?;
        web.new_image().await?;
        // Kubelet starts what it knows of: it has to have seen the change.
        let seen = |e: &[String]| e.iter().any(|e| e.starts_with("Killing: Container main definition changed"));
        t.wait_events("Pod", &web.pod, seen).await?;
        web.let_go().await?;
        let after = web.ends("once", 1..=1).await?;
        assert_eq!(image(&after, "main"), remote_tag("busybox", "v2"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_request_while_the_environment_is_changed_stops_nothing_a_second_time() -> Result<()> {
    in_namespace("crr-after-env", async |t| {
        let web = Running::start(t, reluctant()).await?;
        web.annotate("two").await?;
        web.until_asked().await?;
        web.request("once").await?;
        web.request_taken_up("once").await?;
        web.let_go().await?;
        web.ends("once", 1..=1).await?;
        assert_eq!(web.configuration().await?, "two");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_environment_that_is_changed_while_a_request_stops_the_container_is_in_the_new_instance() -> Result<()> {
    in_namespace("env-after-crr", async |t| {
        let web = Running::start(t, reluctant()).await?;
        web.request("once").await?;
        web.until_asked().await?;
        web.annotate("two").await?;
        web.let_go().await?;
        // Kubelet may start an instance before it has seen the annotation: that one has to be stopped again.
        web.ends("once", 1..=2).await?;
        assert_eq!(web.configuration().await?, "two");
        Ok(())
    })
    .await
}

/// In its grace a Pod is not changed yet: the request restarts the instance that is there, and the update the next one.
#[tokio::test]
async fn a_request_during_the_grace_and_the_update_after_it_both_end() -> Result<()> {
    in_namespace("crr-in-grace", async |t| {
        // Longer than the restart takes on any machine: the test ends it.
        let set = reluctant().with("/spec/updateStrategy/inPlaceUpdateStrategy/gracePeriodSeconds", 600);
        let web = Running::start(t, set).await?;
        web.let_go().await?;
        set_image(t, "web", "main", &remote_tag("busybox", "v2")).await?;
        t.wait_for("Pod", &web.pod, "to be in its grace", PATIENCE, |p| p.has(GRACE)).await?;
        web.request("once").await?;
        t.wait_for("Pod", &web.pod, "to have its first restart", PATIENCE, |p| {
            Container::all(p).get("main").is_some_and(|main| main.restarts == 1)
        })
        .await?;
        let restarted = t.get("Pod", &web.pod).await?;
        ensure!(condition(&restarted, "InPlaceUpdateReady") == "False", "the update is under way");
        let grace: Value = serde_json::from_str(restarted.text(GRACE))?;
        let annotations = json!({ "apps.kruise.io/inplace-update-grace": grace.with("/graceSeconds", 1).to_string() });
        t.patch("Pod", &web.pod, json!({ "metadata": { "annotations": annotations } })).await?;
        let after = web.ends("once", 2..=2).await?;
        assert_eq!(image(&after, "main"), remote_tag("busybox", "v2"));
        Ok(())
    })
    .await
}
