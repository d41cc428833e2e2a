//! `set image`: new images for containers of a template or a SidecarSet, and nothing else.

use serde_json::{Value, json};

use super::{
    JsonPointer,
    exit::{Exit, Stop},
    rollout::{Holds, Write},
};

/// Stands for every container.
const ALL: &str = "*";

/// A container (or `*`) and its new image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    container: String,
    image: String,
}

/// Splits `TYPE/NAME... CONTAINER=IMAGE...` into what names workloads and the images.
///
/// # Errors
/// There is no image, one is empty, or two are for one container.
pub fn split(arguments: &[String]) -> Result<(Vec<String>, Vec<Image>), Stop> {
    let (mut targets, mut images) = (Vec::new(), Vec::<Image>::new());
    for argument in arguments {
        let Some((container, image)) = argument.split_once('=') else {
            targets.push(argument.clone());
            continue;
        };
        if container.is_empty() || image.is_empty() || image.contains(char::is_whitespace) {
            return Err(Stop::usage(format!("{argument:?}: want CONTAINER=IMAGE, or *=IMAGE for every container")));
        }
        let image = Image { container: container.to_owned(), image: image.to_owned() };
        match images.iter().find(|before| before.container == image.container) {
            Some(before) if before.image != image.image => {
                let (one, other) = (&before.image, &image.image);
                return Err(Stop::usage(format!("container {container} cannot get {one} and {other} at once")));
            }
            Some(_) => {}
            None => images.push(image),
        }
    }
    if images.is_empty() {
        return Err(Stop::usage("at least one image update is required: CONTAINER=IMAGE"));
    }
    Ok((targets, images))
}

/// The write that gives the containers of a workload their images, init containers too; None: they have them.
///
/// # Errors
/// A container that is named is not there; which there are.
pub fn set(workload: &Value, images: &[Image]) -> Result<Option<Write>, Stop> {
    let mut containers: Vec<(String, &Value)> = Vec::new();
    for list in ["containers", "initContainers"] {
        let pointer = format!("{}/{list}", Holds::of(workload).at());
        // One without a name cannot be distinguished from another that takes its place.
        let all =
            workload.list(&pointer).iter().enumerate().filter(|(_, container)| !container.text("/name").is_empty());
        containers.extend(all.map(|(i, container)| (format!("{pointer}/{i}"), container)));
    }
    for Image { container, .. } in images.iter().filter(|image| image.container != ALL) {
        if !containers.iter().any(|(_, c)| c.text("/name") == container) {
            let known: Vec<&str> = containers.iter().map(|(_, c)| c.text("/name")).collect();
            let text = format!(
                "unable to find container named {container:?} in {} {:?}; it has {}",
                workload.text("/kind").to_ascii_lowercase(),
                workload.text("/metadata/name"),
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            );
            return Err(Stop::new(Exit::NotFound, text));
        }
    }
    let mut operations = Vec::new();
    for (pointer, container) in containers {
        let name = container.text("/name");
        // The name itself says more than `*`.
        let named = images.iter().find(|image| image.container == name);
        let Some(wanted) = named.or_else(|| images.iter().find(|image| image.container == ALL)) else { continue };
        if container.get("image").and_then(Value::as_str) == Some(wanted.image.as_str()) {
            continue;
        }
        operations.push(json!({ "op": "test", "path": format!("{pointer}/name"), "value": name }));
        // Replaces what is there.
        operations.push(json!({ "op": "add", "path": format!("{pointer}/image"), "value": wanted.image }));
    }
    Ok((!operations.is_empty()).then(|| Write::json(workload, false, operations)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }
    fn workload() -> Value {
        json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": { "name": "web", "uid": "u" },
            "spec": { "template": { "metadata": { "labels": { "app": "web" } }, "spec": {
                "initContainers": [{ "name": "mesh", "image": "m:1", "restartPolicy": "Always" }],
                "containers": [{ "name": "main", "image": "a:1", "invented": { "x": null } }, { "name": "side", "image": "b:1" }],
                "tomorrow": [1] } } } })
    }
    /// The images of mesh, main and side, or what is said.
    fn said(line: &str) -> String {
        let before = workload();
        let after = match split(&strings(line)).and_then(|(_, images)| set(&before, &images)) {
            Err(stop) => return format!("{:?}: {}", stop.exit, stop.message),
            Ok(None) => return "nothing".into(),
            Ok(Some(write)) => write.applied(&before).unwrap(),
        };
        let paths =
            ["initContainers/0", "containers/0", "containers/1"].map(|c| format!("/spec/template/spec/{c}/image"));
        let images: Vec<&str> = paths.iter().map(|path| after.text(path)).collect();
        let mut rest = after.clone();
        for path in &paths {
            *rest.pointer_mut(path).unwrap() = before.pointer(path).unwrap().clone();
        }
        assert_eq!(rest, before, "nothing but images has changed");
        images.join(" ")
    }

    #[test]
    fn images_are_set_by_name_or_for_all() {
        for (line, expected) in [
            ("main=a:2", "m:1 a:2 b:1"),
            ("main=a:2 side=b@sha256:00", "m:1 a:2 b@sha256:00"),
            ("mesh=m:2", "m:2 a:1 b:1"),
            ("*=x", "x x x"),
            ("*=x side=b:1", "x x b:1"),
            ("main=a:1", "nothing"),
            ("main=a:2 main=a:2", "m:1 a:2 b:1"),
            ("main=", "Usage: \"main=\": want CONTAINER=IMAGE, or *=IMAGE for every container"),
            ("=a", "Usage: \"=a\": want CONTAINER=IMAGE, or *=IMAGE for every container"),
            ("main=a main=b", "Usage: container main cannot get a and b at once"),
            ("main", "Usage: at least one image update is required: CONTAINER=IMAGE"),
            (
                "main=a:2 man=a:2",
                "NotFound: unable to find container named \"man\" in cloneset \"web\"; it has main, side, mesh",
            ),
        ] {
            assert_eq!(said(line), expected, "{line}");
        }
        let (targets, _) = split(&strings("clone/web main=a=b cloneset/api")).unwrap();
        assert_eq!(targets, ["clone/web", "cloneset/api"]);
    }

    #[test]
    fn a_container_that_has_moved_meanwhile_is_not_hit() {
        let (_, images) = split(&strings("side=b:2")).unwrap();
        let write = set(&workload(), &images).unwrap().unwrap();
        let mut moved = workload();
        moved["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().swap(0, 1);
        assert!(write.applied(&moved).is_err());
        let mut another = workload();
        another["metadata"]["uid"] = "another".into();
        assert!(write.applied(&another).is_err());
    }

    #[test]
    fn containers_of_a_sidecar_set_get_images_too() {
        let set = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": { "name": "s", "uid": "u" },
            "spec": { "containers": [{ "name": "agent", "image": "a:1" }], "initContainers": [{ "name": "mesh", "image": "m:1" }] } });
        let (_, images) = split(&strings("agent=a:2 mesh=m:2")).unwrap();
        let mut wanted = set.clone();
        wanted["spec"]["containers"][0]["image"] = "a:2".into();
        wanted["spec"]["initContainers"][0]["image"] = "m:2".into();
        assert_eq!(super::set(&set, &images).unwrap().unwrap().applied(&set).unwrap(), wanted);
    }

    #[test]
    fn odd_templates_are_taken() {
        let (_, all) = split(&strings("*=x")).unwrap();
        let (_, main) = split(&strings("main=x")).unwrap();
        let odd = |template: Value| json!({ "kind": "CloneSet", "metadata": { "name": "web", "uid": "u" }, "spec": { "template": template } });
        for template in [json!(null), json!([]), json!({ "spec": { "containers": [1, {}, { "image": "a" }] } })] {
            assert_eq!(set(&odd(template.clone()), &all), Ok(None), "{template}");
            assert!(set(&odd(template), &main).unwrap_err().message.ends_with("it has none"));
        }
        let without_image = odd(json!({ "spec": { "containers": [{ "name": "main" }] } }));
        let changed = set(&without_image, &main).unwrap().unwrap().applied(&without_image).unwrap();
        assert_eq!(changed.text("/spec/template/spec/containers/0/image"), "x");
    }
}
