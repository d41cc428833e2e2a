//! What is stored of a template: OpenKruise compares bytes, so they have to be those that Go's encoder makes.

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, pod, poll, restoring, workload};
use e2e::paths::SYSTEM;
use futures::AsyncReadExt;
use kube::api::{GetParams, Request};
use serde_json::{Value, json};

use crate::sidecar_set;

/// Everything that Go escapes, and some of what it does not.
const TEXT: &str = "a & <b> \u{2028}\u{2029} \"q\" \\ \t\n\r\u{1}\u{8}\u{c} \u{7f} é 漢 \u{1f600} /";
/// The same as Go writes it.
const ESCAPED: &str =
    "\"a \\u0026 \\u003cb\\u003e \\u2028\\u2029 \\\"q\\\" \\\\ \\t\\n\\r\\u0001\\b\\f \u{7f} é 漢 \u{1f600} /\"";

/// The length-delimited fields with this number of a protobuf message.
fn fields(mut message: &[u8], wanted: u64) -> Result<Vec<&[u8]>> {
    fn varint(bytes: &mut &[u8]) -> Result<u64> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, rest) = bytes.split_first().context("it ends early")?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
            ensure!(shift < 64, "a number is too long");
        }
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message)?;
        match key & 7 {
            0 => drop(varint(&mut message)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?)?;
                let (field, rest) = message.split_at_checked(length).context("a field ends early")?;
                message = rest;
                if key >> 3 == wanted {
                    found.push(field);
                }
            }
            other => anyhow::bail!("wire type {other}"),
        }
    }
    Ok(found)
}

/// `data` of a ControllerRevision, from the object in protobuf: unlike in JSON, these are the bytes that are stored.
fn data(body: &[u8]) -> Result<String> {
    let unknown = body.strip_prefix(b"k8s\0").context("not protobuf of Kubernetes")?;
    let one =
        |message, number| -> Result<&[u8]> { fields(message, number)?.first().copied().context("a field is missing") };
    let raw = one(one(one(unknown, 2)?, 2)?, 1)?;
    Ok(String::from_utf8(raw.to_vec())?)
}

/// Object keys as they come in a text of JSON, for each object in it.
fn is_sorted(value: &str) -> Result<bool> {
    // Numbers and texts keep their form: the parsed document, whose maps are sorted, gives the same text again.
    let parsed: Value = serde_json::from_str(value)?;
    let again = serde_json::to_string(&parsed)?;
    let escaped = again.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
    let escaped = escaped.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
    Ok(escaped == value)
}

/// The data of the only revision with these labels, as it is stored.
async fn stored(t: &Test, namespace: &str, labels: &str) -> Result<String> {
    let revisions = t.list_in(namespace, "ControllerRevision", labels).await?;
    let [revision] = revisions.as_slice() else { anyhow::bail!("{} revisions", revisions.len()) };
    let all = Request::new(format!("/apis/apps/v1/namespaces/{namespace}/controllerrevisions"));
    let mut request = all.get(revision.text("/metadata/name"), &GetParams::default())?;
    request.headers_mut().insert("accept", "application/vnd.kubernetes.protobuf".parse()?);
    let mut body = Vec::new();
    t.client.request_stream(request).await?.read_to_end(&mut body).await?;
    data(&body)
}

/// Waits until the revision is there, and looks for parts of it.
async fn holds(t: &Test, (namespace, labels): (&str, &str), parts: &[&str]) -> Result<()> {
    poll("its revision", PATIENCE, async || {
        let data = stored(t, namespace, labels).await?;
        for part in parts {
            ensure!(data.contains(part), "{labels}: no {part} in {data}");
        }
        ensure!(is_sorted(&data)?, "{labels}: {data}");
        Ok(())
    })
    .await
}

/// A container with a text in which Go escapes something.
fn container() -> Value {
    let mut container = app("main");
    container["env"] = json!([{ "name": "Z_FIRST", "value": TEXT }]);
    container["ports"] = json!([{ "protocol": "TCP", "containerPort": 8080, "name": "http" }]);
    container
}

/// A Pod template with every kind of number and key.
fn with_numbers(set: Value, template: &str) -> Value {
    let annotations = json!({ "z/last": TEXT, "a/first": "1", "B": "<", "b": ">", "0": "&" });
    set.with(&format!("{template}/metadata/annotations"), annotations)
        .with(&format!("{template}/spec/terminationGracePeriodSeconds"), 0)
        .with(&format!("{template}/spec/priority"), -5)
        .with(
            &format!("{template}/spec/tolerations"),
            json!([{ "key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9_007_199_254_740_993_i64 }]),
        )
}

#[tokio::test]
async fn revisions_of_every_kind_are_stored_in_the_bytes_that_go_would_write() -> Result<()> {
    in_namespace("revision-bytes", async |t| {
        let env = format!("\"env\":[{{\"name\":\"Z_FIRST\",\"value\":{ESCAPED}}}]");
        let annotations = format!(
            "\"annotations\":{{\"0\":\"\\u0026\",\"B\":\"\\u003c\",\"a/first\":\"1\",\"b\":\"\\u003e\",\"z/last\":{ESCAPED}}}"
        );
        let parts = [
            env.as_str(),
            &annotations,
            // Go's decoder reads it as a float, which has no 9007199254740993.
            "\"tolerationSeconds\":9007199254740992",
            "\"priority\":-5",
            "\"terminationGracePeriodSeconds\":0",
            "\"containerPort\":8080,\"name\":\"http\",\"protocol\":\"TCP\"",
        ];
        for (kind, version) in [("CloneSet", "v1alpha1"), ("StatefulSet", "v1beta1"), ("DaemonSet", "v1beta1")] {
            let name = format!("bytes-{}", kind.to_lowercase());
            let set = workload(kind, &name, 0, vec![container()]).with("/apiVersion", format!("apps.kruise.io/{version}"));
            let mut set = with_numbers(set, "/spec/template");
            if kind == "DaemonSet" {
                set = set.with("/spec/template/spec/nodeSelector", json!({ "revision-bytes": "nowhere" }));
            }
            t.create(set).await.with_context(|| kind.to_owned())?;
            holds(t, (&t.namespace, &format!("app={name}")), &parts).await?;
        }
        let labels = json!({ "app": "united" });
        let template = json!({ "metadata": { "labels": labels }, "spec": pod("united", vec![container()])["spec"] });
        let united = json!({ "kind": "UnitedDeployment", "metadata": { "name": "united" }, "spec": {
            "replicas": 0, "selector": { "matchLabels": labels }, "topology": { "subsets": [{ "name": "a" }] },
            "template": { "cloneSetTemplate": { "metadata": { "labels": labels }, "spec": { "template": template } } } } });
        t.create(with_numbers(united, "/spec/template/cloneSetTemplate/spec/template")).await?;
        // Those of its workloads have the label of their subset.
        holds(t, (&t.namespace, "app=united,!apps.kruise.io/subset-name"), &parts).await?;
        let set = t.create(sidecar_set::set(t, "bytes", &[container()])).await?;
        let labels = format!("kruise.io/sidecarset-name={}", set.text("/metadata/name"));
        let of_container = [env.as_str(), parts[5]];
        restoring(holds(t, (SYSTEM, &labels), &of_container), sidecar_set::removed(t, &["bytes"])).await
    })
    .await
}
