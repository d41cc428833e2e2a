//! `cancel`: deletes requests that have not ended, and reports what that undoes.

use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Preconditions},
};
use serde_json::Value;

use super::{
    connection::{Connection, ConnectionArgs},
    requests::{Listed, api_of, find, list, reference, resource_for, value},
    rules::{
        JsonPointer,
        cancel::{Verdict, judge},
        exit::{Exit, Stop, of_error},
        table::clean,
        target::{self, Subject},
    },
    view::{print, report, report_failure},
};
use crate::runtime::apply;

/// What to say where WorkloadRestarts are not among the requests.
const WITHOUT_RESTARTS: &str = "Warning: no permission to list workloadrestarts.kruise.rs; they and the requests that they have made are not cancelled";

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
    let mut exit = Exit::Success;
    if args.all {
        let listed = list(&connection, false, None).await?;
        if !listed.has_restarts {
            report(WITHOUT_RESTARTS);
        }
        for stop in left_out(&listed) {
            exit = exit.max(report_failure(&stop));
        }
        objects.extend(listed.objects.into_iter().filter(is_open));
    }
    for subject in subjects {
        match find(&connection, std::slice::from_ref(&subject)).await {
            // Of a Pod's requests only the open ones are meant.
            Ok(found) => {
                let is_meant = |object: &Value| match judge(object) {
                    Verdict::Delete(_) | Verdict::Owned(_) => true,
                    Verdict::Ended(_) | Verdict::Deleting => !matches!(subject, Subject::Pod(_)),
                };
                objects.extend(found.into_iter().filter(is_meant));
            }
            Err(stop) => exit = exit.max(report_failure(&stop)),
        }
    }
    if objects.is_empty() && exit == Exit::Success {
        report(&format!("No open requests in namespace {}.", connection.namespace));
    }
    // One that cannot be cancelled does not keep the others from being cancelled.
    for object in objects {
        match cancel(&connection, object, args.dry_run).await {
            Ok(text) => print(&text)?,
            Err(stop) => exit = exit.max(report_failure(&stop)),
        }
    }
    Ok(exit)
}

fn is_open(object: &Value) -> bool {
    matches!(judge(object), Verdict::Delete(_))
}

/// The open requests of WorkloadRestarts, if those may not be listed and so are not cancelled with them.
fn left_out(listed: &Listed) -> Vec<Stop> {
    if listed.has_restarts {
        return Vec::new();
    }
    let left_out = listed.objects.iter().filter_map(|object| match judge(object) {
        Verdict::Owned(restart) => Some(left_to(object, &restart, Exit::Refused)),
        _ => None,
    });
    left_out.collect()
}

/// Deleted without its WorkloadRestart a request would be made again, and the container restarted once more.
fn left_to(object: &Value, restart: &str, exit: Exit) -> Stop {
    let message = format!(
        "{} is left out: WorkloadRestart {restart} would make it again. Who may delete workloadrestarts.kruise.rs \
         has to cancel that: kubectl kruise cancel wr/{restart}",
        reference(object)
    );
    Stop::new(exit, message)
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
            Verdict::Owned(restart) => return Err(left_to(&object, &restart, Exit::Failed)),
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

    fn of_restart(mut request: Value) -> Value {
        request["metadata"]["ownerReferences"] = json!([{ "kind": "WorkloadRestart", "name": "roll", "uid": "r" }]);
        request
    }

    #[test]
    fn requests_of_restarts_that_may_not_be_listed_are_named() {
        let mut ended = of_restart(request("1", "c"));
        ended["status"] = json!({ "phase": "Completed", "message": "pod has gone" });
        for (has_restarts, want) in [(false, 1), (true, 0)] {
            let objects = vec![request("1", "a"), of_restart(request("1", "b")), ended.clone()];
            assert_eq!(objects.iter().filter(|object| is_open(object)).count(), 1, "the owned one is never deleted");
            let stops = left_out(&Listed { objects, has_restarts });
            assert_eq!(stops.len(), want, "{stops:?}");
            for stop in stops {
                assert_eq!(stop.exit, Exit::Refused);
                let words = ["containerrecreaterequest.apps.kruise.io/a is left out", "kubectl kruise cancel wr/roll"];
                assert!(words.iter().all(|words| stop.message.contains(words)), "{stop}");
            }
        }
    }

    #[tokio::test]
    async fn a_request_of_a_restart_is_not_cancelled_by_its_name_either() {
        let client = fake_api::answering(|parts, _| panic!("{}", parts.uri));
        let connection = Connection { client, namespace: "shop".into() };
        let stop = cancel(&connection, of_restart(request("1", "u")), false).await.unwrap_err();
        assert_eq!(stop.exit, Exit::Failed);
        assert!(stop.message.contains("WorkloadRestart roll would make it again"), "{stop}");
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
