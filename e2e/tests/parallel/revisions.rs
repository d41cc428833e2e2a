//! What is stored of a template: OpenKruise compares bytes, so they have to be those that Go's encoder makes.

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, app, in_namespace, poll, workload};
use futures::AsyncReadExt;
use kube::api::{GetParams, Request};
use serde_json::{Value, json};

/// Everything that Go escapes, and some of what it does not.
const TEXT: &str = "a & <b> \u{2028}\u{2029} \"q\" \\ \t\n\r \u{7f} é 漢 \u{1f600} /";
/// The same as Go writes it.
const ESCAPED: &str = "\"a \\u0026 \\u003cb\\u003e \\u2028\\u2029 \\\"q\\\" \\\\ \\t\\n\\r \u{7f} é 漢 \u{1f600} /\"";

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

#[tokio::test]
async fn revisions_of_every_kind_are_stored_in_the_bytes_that_go_would_write() -> Result<()> {
    in_namespace("revision-bytes", async |t| {
        for (kind, version) in [("CloneSet", "v1alpha1"), ("StatefulSet", "v1beta1"), ("DaemonSet", "v1beta1")] {
            let name = format!("bytes-{}", kind.to_lowercase());
            let mut container = app("main");
            container["env"] = json!([{ "name": "Z_FIRST", "value": TEXT }]);
            container["ports"] = json!([{ "protocol": "TCP", "containerPort": 8080, "name": "http" }]);
            let annotations = json!({ "z/last": TEXT, "a/first": "1", "B": "<", "b": ">", "0": "&" });
            let mut set = workload(kind, &name, 0, vec![container])
                .with("/apiVersion", format!("apps.kruise.io/{version}"))
                .with("/spec/template/metadata/annotations", annotations)
                .with("/spec/template/spec/terminationGracePeriodSeconds", 0)
                .with("/spec/template/spec/priority", -5)
                .with("/spec/template/spec/tolerations", json!([{ "key": "k", "operator": "Exists", "effect": "NoExecute",
                    "tolerationSeconds": 9_007_199_254_740_991_i64 }]));
            if kind == "DaemonSet" {
                set = set.with("/spec/template/spec/nodeSelector", json!({ "revision-bytes": "nowhere" }));
            }
            t.create(set).await.with_context(|| kind.to_owned())?;
            poll("its revision", PATIENCE, async || {
                let revisions = t.list("ControllerRevision", &format!("app={name}")).await?;
                let [revision] = revisions.as_slice() else { anyhow::bail!("{} revisions", revisions.len()) };
                let all = Request::new(format!("/apis/apps/v1/namespaces/{}/controllerrevisions", t.namespace));
                let mut request = all.get(revision.text("/metadata/name"), &GetParams::default())?;
                request.headers_mut().insert("accept", "application/vnd.kubernetes.protobuf".parse()?);
                let mut body = Vec::new();
                t.client.request_stream(request).await?.read_to_end(&mut body).await?;
                let data = data(&body)?;
                for part in [
                    &*format!("\"env\":[{{\"name\":\"Z_FIRST\",\"value\":{ESCAPED}}}]"),
                    &format!("\"annotations\":{{\"0\":\"\\u0026\",\"B\":\"\\u003c\",\"a/first\":\"1\",\"b\":\"\\u003e\",\"z/last\":{ESCAPED}}}"),
                    "\"tolerationSeconds\":9007199254740991",
                    "\"priority\":-5",
                    "\"terminationGracePeriodSeconds\":0",
                    "\"containerPort\":8080,\"name\":\"http\",\"protocol\":\"TCP\"",
                ] {
                    ensure!(data.contains(part), "{kind}: no {part} in {data}");
                }
                ensure!(is_sorted(&data)?, "{kind}: {data}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    })
    .await
}
