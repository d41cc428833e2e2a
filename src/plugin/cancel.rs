//! `cancel`: deletes requests that have not ended, and reports what that undoes.

use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Preconditions},
};
use serde_json::Value;

use super::{
    connection::{Connection, ConnectionArgs},
    requests::{api_of, find, list, owner, reference},
    rules::{
        JsonPointer,
        cancel::{Verdict, judge},
        exit::{Exit, Stop, of_error},
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
    let is_open = |object: &Value| matches!(judge(object), Verdict::Delete(_));
    let mut objects = Vec::new();
    if args.all {
        // What a WorkloadRestart has made goes with it.
        let all = list(&connection, false, None).await?.into_iter();
        objects.extend(all.filter(|object| owner(object).is_none() && is_open(object)));
    }
    for subject in subjects {
        let found = find(&connection, std::slice::from_ref(&subject)).await?.into_iter();
        // Of a Pod's requests only the open ones are meant.
        objects.extend(found.filter(|object| !matches!(subject, Subject::Pod(_)) || is_open(object)));
    }
    if objects.is_empty() {
        report(&format!("No open requests in namespace {}.", connection.namespace));
    }
    for object in objects {
        cancel(&connection, object, args.dry_run).await?;
    }
    Ok(Exit::Success)
}

/// Deletes one request as it was judged; one that has moved meanwhile is judged again.
async fn cancel(connection: &Connection, mut object: Value, dry_run: bool) -> Result<(), Stop> {
    let name = object.text("/metadata/name").to_owned();
    let reference = reference(&object);
    loop {
        let parts = match judge(&object) {
            Verdict::Ended(how) => {
                return print(&format!("{reference} has ended already ({}) and is kept\n", clean(&how)));
            }
            Verdict::Deleting => return print(&format!("{reference} is being deleted already\n")),
            Verdict::Delete(parts) => parts,
        };
        let api: Api<DynamicObject> = api_of(&connection.client, &object);
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
                return print(&format!("{reference} cancelled{note}\n{lines}"));
            }
            Err(error) if apply::code(&error) == Some(404) => return print(&format!("{reference} is gone already\n")),
            Err(error) if apply::code(&error) == Some(409) => {
                let namespaced =
                    Connection { namespace: object.text("/metadata/namespace").into(), ..connection.clone() };
                let kind = object.text("/kind").to_owned();
                let subject = target::subjects(&[format!("{}/{name}", kind.to_ascii_lowercase())])?;
                object = match find(&namespaced, &subject).await?.pop() {
                    Some(object) => object,
                    None => return print(&format!("{reference} is gone already\n")),
                };
            }
            Err(error) => return Err(of_error(&reference, &error)),
        }
    }
}
