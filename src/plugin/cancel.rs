//! `cancel`: deletes requests that have not ended, and reports what that undoes.

use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Preconditions},
};
use serde_json::Value;

use super::{
    connection::{Connection, ConnectionArgs},
    requests::{WITHOUT_RESTARTS, api_of, find, list, reference, resource_for, value},
    rules::{
        JsonPointer,
        cancel::{Verdict, judge},
        exit::{Exit, Stop, of_error},
        request::without_owned_requests,
        table::clean,
        target::{self, Subject},
    },
    view::{print, report},
};
use crate::runtime::apply;

/// Delete requests that have not ended. A stop that was sent is not taken back; requests that have ended are kept.
#[derive(Debug, clap::Args)]
pub(super) struct CancelArgs {
    /// NAME, crr/NAME, wr/NAME, or pod/NAME for the requests of a Pod.
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// Every request of the namespace that has not ended.
    #[arg(long)]
    all: bool,
    /// Only say what would be deleted.
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(args: CancelArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let subjects = target::subjects(&args.names)?;
    let connection = connection.open().await?;
    let mut objects = Vec::new();
    if args.all {
        let listed = list(&connection, false, None).await?;
        let listed = if listed.has_restarts {
            // What a WorkloadRestart has made goes with it.
            without_owned_requests(listed.objects)
        } else {
            report(WITHOUT_RESTARTS);
            listed.objects
        };
        objects.extend(listed.into_iter().filter(is_open));
    }
    let mut exit = Exit::Success;
    for subject in subjects {
        match find(&connection, std::slice::from_ref(&subject)).await {
            // Of a Pod's requests only the open ones are meant.
            Ok(found) => {
                objects
                    .extend(found.into_iter().filter(|object| !matches!(subject, Subject::Pod(_)) || is_open(object)));
            }
            Err(stop) => exit = exit.max(failed(&stop)),
        }
    }
    if objects.is_empty() && exit == Exit::Success {
        report(&format!("No open requests in namespace {}.", connection.namespace));
    }
    // One that cannot be cancelled does not keep the others from being cancelled.
    for object in objects {
        match cancel(&connection, object, args.dry_run).await {
            Ok(text) => print(&text)?,
            Err(stop) => exit = exit.max(failed(&stop)),
        }
    }
    Ok(exit)
}

fn is_open(object: &Value) -> bool {
    matches!(judge(object), Verdict::Delete(_))
}

fn failed(stop: &Stop) -> Exit {
    report(&format!("error: {stop}"));
    stop.exit
}

/// Deletes one request as it was judged; one that has moved meanwhile is judged again. Gives what became of it.
async fn cancel(connection: &Connection, mut object: Value, dry_run: bool) -> Result<String, Stop> {
    let name = object.text("/metadata/name").to_owned();
    let reference = reference(&object);
    let gone = format!("{reference} is gone already\n");
    let api: Api<DynamicObject> = api_of(&connection.client, &object);
    loop {
        let parts = match judge(&object) {
            Verdict::Ended(how) => {
                return Ok(format!("{reference} has ended already ({}) and is kept\n", clean(&how)));
            }
            Verdict::Deleting => return Ok(format!("{reference} is being deleted already\n")),
            Verdict::Delete(parts) => parts,
        };
        let text = |pointer: &str| Some(object.text(pointer).to_owned());
        let params = DeleteParams {
            dry_run,
            preconditions: Some(Preconditions {
                uid: text("/metadata/uid"),
                resource_version: text("/metadata/resourceVersion"),
            }),
            ..DeleteParams::background()
        };
        match api.delete(&name, &params).await {
            Ok(_) => {
                let note = if dry_run { " (server dry run)" } else { "" };
                let lines: String = parts.iter().map(|part| format!("  {}\n", clean(part))).collect();
                return Ok(format!("{reference} cancelled{note}\n{lines}"));
            }
            Err(error) if apply::code(&error) == Some(404) => return Ok(gone),
            Err(error) if apply::code(&error) == Some(409) => {
                let now = api.get_opt(&name).await.map_err(|error| of_error(&reference, &error))?;
                // Another one of the same name is not what was to be cancelled.
                let same = now.filter(|now| {
                    now.metadata.uid.as_deref() == object.pointer("/metadata/uid").and_then(Value::as_str)
                });
                let Some(now) = same else { return Ok(gone) };
                object = value(now, &resource_for(&object))?;
            }
            Err(error) => return Err(of_error(&reference, &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api;

    fn request(version: &str, uid: &str) -> Value {
        json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": { "name": "a", "namespace": "shop", "uid": uid, "resourceVersion": version },
            "spec": { "podName": "web", "containers": [{ "name": "main" }] } })
    }

    #[tokio::test]
    async fn a_request_that_has_moved_is_looked_at_again() {
        let failure = |code: u16| {
            let reason = if code == 404 { "NotFound" } else { "" };
            (code, json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no" }))
        };
        let deleted = "containerrecreaterequest.apps.kruise.io/a cancelled\n  container main: was not touched and keeps running\n";
        let gone = "containerrecreaterequest.apps.kruise.io/a is gone already\n";
        for (read, told) in [
            ((200, request("2", "u")), Ok(deleted)),
            // It was deleted between the two, or another one has its name.
            (failure(404), Ok(gone)),
            ((200, request("2", "other")), Ok(gone)),
            (failure(403), Err(Exit::Refused)),
        ] {
            let client = fake_api::answering(move |parts, body| {
                // Only the version that was read anew is the present one.
                let is_now = String::from_utf8_lossy(body).contains(r#""resourceVersion":"2""#);
                match parts.method.as_str() {
                    "GET" => read.clone(),
                    "DELETE" if is_now => (200, json!({ "kind": "Status", "status": "Success" })),
                    "DELETE" => failure(409),
                    other => panic!("{other}"),
                }
            });
            let connection = Connection { client, namespace: "shop".into() };
            let said = cancel(&connection, request("1", "u"), false).await;
            assert_eq!(said.as_deref().map_err(|stop| stop.exit), told);
        }
    }
}
