//! Holds the workflows, the Dockerfile and the scripts of a release to what SECURITY.md says of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_yaml::Value;

const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every workflow by its file name, as text and parsed.
fn workflows() -> BTreeMap<String, (String, Value)> {
    let folder = fs::read_dir(root().join(".github/workflows")).unwrap();
    folder
        .map(|entry| {
            let path: PathBuf = entry.unwrap().path();
            let text = read(&path);
            let parsed = serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path.file_name().unwrap().to_string_lossy().into_owned(), (text, parsed))
        })
        .collect()
}

fn workflow(name: &str) -> Value {
    workflows().remove(name).unwrap_or_else(|| panic!("no workflow {name}")).1
}

fn jobs(workflow: &Value) -> Vec<(&str, &Value)> {
    workflow["jobs"].as_mapping().unwrap().iter().map(|(name, job)| (name.as_str().unwrap(), job)).collect()
}

fn texts(list: &Value) -> Vec<&str> {
    match list {
        Value::Sequence(list) => list.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    }
}

/// What the steps of a job run, one text for each.
fn commands(job: &Value) -> Vec<&str> {
    job["steps"].as_sequence().into_iter().flatten().filter_map(|step| step["run"].as_str()).collect()
}

/// Every value of a key, wherever it is.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Mapping(map) => {
            for (name, value) in map {
                if name.as_str() == Some(key) {
                    found.push(value);
                }
                all(value, key, found);
            }
        }
        Value::Sequence(list) => list.iter().for_each(|value| all(value, key, found)),
        _ => {}
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn has_digest(image: &str) -> bool {
    image.split_once("@sha256:").is_some_and(|(_, digest)| is_hex(digest, 64))
}

#[test]
fn every_action_is_pinned_by_commit_and_names_its_version() {
    for (name, (text, parsed)) in workflows() {
        let mut used = Vec::new();
        all(&parsed, "uses", &mut used);
        for used in used.into_iter().map(|used| used.as_str().unwrap()) {
            if let Some(own) = used.strip_prefix("./") {
                assert!(root().join(own).exists(), "{name}: {used} does not exist");
                continue;
            }
            let commit = used.split_once('@').map(|(_, commit)| commit).unwrap_or_default();
            assert!(is_hex(commit, 40), "{name}: {used}: pin it by its full commit");
            assert!(text.contains(&format!("{used} # v")), "{name}: {used}: write the version behind it");
        }
        let mut images = Vec::new();
        all(&parsed, "container", &mut images);
        for container in images {
            let image = container.as_str().or_else(|| container["image"].as_str()).unwrap();
            assert!(has_digest(image), "{name}: {image}: pin it by digest");
        }
    }
}

#[test]
fn no_job_may_write_but_the_one_that_publishes() {
    for (name, (_, parsed)) in workflows() {
        assert_eq!(parsed["permissions"], Value::Mapping(Default::default()), "{name}: permissions: {{}} at the top");
        let group = parsed["concurrency"]["group"].as_str().unwrap_or_else(|| panic!("{name}: no concurrency group"));
        assert!(!group.contains("github.workflow"), "{name}: the caller's, if it is called");
        for (job_name, job) in jobs(&parsed) {
            let permissions =
                job["permissions"].as_mapping().unwrap_or_else(|| panic!("{name} {job_name}: permissions"));
            let publishes = (name.as_str(), job_name) == ("release.yml", "publish");
            for (right, value) in permissions {
                let allowed = publishes || (right.as_str(), value.as_str()) == (Some("contents"), Some("read"));
                assert!(allowed, "{name} {job_name}: {right:?}: {value:?}");
            }
            let text = serde_yaml::to_string(job).unwrap();
            assert!(publishes || !text.contains("secrets."), "{name} {job_name} reads a secret");
            assert!(publishes == (job["environment"] == "release"), "{name} {job_name}: environment");
            assert!(job["timeout-minutes"].is_u64() || job["uses"].is_string(), "{name} {job_name}: timeout-minutes");
            for step in job["steps"].as_sequence().into_iter().flatten() {
                if step["uses"].as_str().is_some_and(|used| used.starts_with("actions/checkout@")) {
                    assert_eq!(step["with"]["persist-credentials"], false, "{name} {job_name}: the token stays behind");
                }
            }
        }
    }
}

#[test]
fn nothing_that_fails_is_passed_over() {
    for (name, (text, parsed)) in workflows() {
        let mut found = Vec::new();
        all(&parsed, "continue-on-error", &mut found);
        assert!(found.is_empty(), "{name}: continue-on-error");
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        assert!(!code.contains("||"), "{name}: a command that fails is passed over");
    }
    let advisories = workflow("advisories.yml");
    assert!(advisories["on"]["schedule"][0]["cron"].is_string(), "advisories become known without a push");
    let job = &advisories["jobs"]["advisories"];
    assert!(commands(job).iter().any(|run| run.contains("cargo deny") && run.ends_with("check advisories")));
    for manifest in texts(&job["strategy"]["matrix"]["manifest"]) {
        assert!(root().join(manifest).exists(), "{manifest}");
    }
}

#[test]
fn every_push_and_pull_request_is_checked_and_tested() {
    let ci = workflow("ci.yml");
    for event in ["push", "pull_request", "workflow_call"] {
        assert!(ci["on"].get(event).is_some(), "{event}");
    }
    assert_eq!(texts(&ci["on"]["push"]["branches"]), ["**"]);
    assert!(commands(&ci["jobs"]["check"]).contains(&"make check"));
    assert!(commands(&ci["jobs"]["site"]).contains(&"make site-check"));
    assert!(commands(&ci["jobs"]["test"]).iter().any(|run| run.ends_with(" .ci/run")));
    assert!(read(".ci/run").contains("exec make test"));
    let makefile = read("Makefile");
    let (_, soak) = makefile.split_once("\nsoak: ").unwrap();
    assert!(soak.split("\n\n").next().unwrap().contains("\t$(E2E) site --check\n"), "where there is no CI");
}

#[test]
fn a_release_is_published_after_all_tests_with_both_architectures() {
    let release = workflow("release.yml");
    assert_eq!(release["jobs"]["tests"]["uses"], "./.github/workflows/ci.yml");
    let publish = &release["jobs"]["publish"];
    let needs: BTreeSet<&str> = texts(&publish["needs"]).into_iter().collect();
    assert_eq!(needs, BTreeSet::from(["version", "tests", "build"]));
    assert!(publish["if"].is_null(), "a condition could run it without what it needs");

    let built = release["jobs"]["build"]["strategy"]["matrix"]["include"].as_sequence().unwrap();
    let built: Vec<&str> = built.iter().map(|entry| entry["arch"].as_str().unwrap()).collect();
    assert_eq!(built, ARCHITECTURES);
    let commands = commands(publish).concat();
    for arch in ARCHITECTURES {
        assert!(commands.contains(&format!("{arch}=built/{arch}/kruise-rs.tar")), "{arch}");
    }
    assert!(commands.contains(".ci/release-manifests \"$DIGEST\""));
    for target in ["x86_64", "aarch64"] {
        assert!(read("deny.toml").contains(&format!("\"{target}-unknown-linux-gnu\"")), "{target}");
    }
}

#[test]
fn one_compiler_builds_and_one_builder() {
    let mut compilers = BTreeSet::new();
    for (_, (_, parsed)) in workflows() {
        let mut found = Vec::new();
        all(&parsed, "RUST", &mut found);
        compilers.extend(found.into_iter().map(|version| version.as_str().unwrap().to_owned()));
    }
    assert_eq!(compilers.len(), 1, "{compilers:?}");
    let (minor, _) = compilers.first().unwrap().rsplit_once('.').unwrap();

    let release = workflow("release.yml");
    let builder = release["jobs"]["build"]["container"]["image"].as_str().unwrap();
    assert!(builder.starts_with(&format!("docker.io/library/rust:{minor}-")), "{builder}");
    let dockerfile = read("Dockerfile");
    assert!(dockerfile.contains(&format!("FROM {builder} AS build\n")), "the Dockerfile has another builder");
    assert_eq!(workflow("ci.yml")["jobs"]["site"]["container"]["image"], builder, "the site has another one");
}

#[test]
fn images_come_from_nothing_or_a_digest_and_do_not_run_as_root() {
    // The user of each stage.
    let mut users: BTreeMap<String, Option<String>> = BTreeMap::from([("scratch".into(), None)]);
    let mut last = String::new();
    for line in read("Dockerfile").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["FROM", from, rest @ ..] => {
                let inherited = users.get(*from).cloned();
                assert!(inherited.is_some() || has_digest(from), "{from}: pin it by digest");
                last = rest.get(1).map_or_else(|| "the last".to_owned(), |name| (*name).to_owned());
                users.insert(last.clone(), inherited.flatten());
            }
            ["USER", user] => drop(users.insert(last.clone(), Some((*user).to_owned()))),
            _ => {}
        }
    }
    for stage in ["prebuilt", last.as_str()] {
        let user = users[stage].as_deref().unwrap_or_else(|| panic!("stage {stage} runs as root"));
        // A name means nothing in an image without /etc/passwd, and kubelet cannot know whether it is root.
        let ids: Vec<u32> = user.split(':').map(|id| id.parse().unwrap()).collect();
        assert!(ids.len() == 2 && ids.iter().all(|id| *id >= 10_000), "stage {stage}: USER {user}");
    }
}

#[test]
fn every_fuzzer_runs_every_night() {
    let fuzz = workflow("fuzz.yml");
    assert!(fuzz["on"]["schedule"][0]["cron"].is_string());
    let named: BTreeSet<String> =
        texts(&fuzz["jobs"]["fuzz"]["strategy"]["matrix"]["target"]).into_iter().map(str::to_owned).collect();
    let files = fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap();
    let there: BTreeSet<String> =
        files.map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(named, there);
    let manifest = read("fuzz/Cargo.toml");
    for target in there {
        assert!(manifest.contains(&format!("name = \"{target}\"\n")), "{target} is not in fuzz/Cargo.toml");
    }
}

#[test]
fn the_manifests_of_a_release_name_the_image_by_digest() {
    let folder = tempfile::tempdir().unwrap();
    let run = |digest: &str, out: &Path| {
        let script = root().join(".ci/release-manifests");
        let output = Command::new(script).arg(digest).arg(out).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (digest, out) = (format!("sha256:{}", "0f".repeat(32)), folder.path().join("manifests"));
    assert_eq!(run(&digest, &out), (true, String::new()));
    let mut named = 0;
    for role in ["manager", "webhook", "daemon"] {
        let text = fs::read_to_string(out.join(format!("base/{role}.yaml"))).unwrap();
        let images: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
        let version = env!("CARGO_PKG_VERSION");
        assert!(images.iter().all(|image| *image == format!("docker.io/kruise-rs/kruise-rs:v{version}@{digest}")));
        named += images.len();
    }
    assert_eq!(named, 3);
    let (done, error) = run("v0.1.0", &folder.path().join("other"));
    assert!(!done && error.contains("v0.1.0 is no digest"), "{error}");
}
