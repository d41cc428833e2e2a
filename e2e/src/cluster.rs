//! The node: etcd, API server, controller manager, scheduler, kubelet, kube-proxy, containerd and an image registry.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cmd::{CommandExt, cmd, ctr, kubectl, search_path, tail};
use crate::config::{self, SERVICE_CIDR, kubelet_dir};
use crate::paths::{
    API_PORT, BRIDGE, ETCD_PORT, NODE, PRIVATE_PORT, Paths, REGISTRY_PORT, RUN, containerd_dir, containerd_socket,
};
use crate::process::{self, Process, until};
use crate::versions;

/// In the order in which they are stopped.
pub const PROGRAMS: &[&str] = &[
    "kube-proxy",
    "kubelet",
    "scheduler",
    "controller-manager",
    "apiserver",
    "containerd",
    "registry",
    "private-registry",
    "etcd",
];

/// How the names of the programs of the load bench begin.
pub const LOAD: &str = "load-";

/// What kubelet and kube-proxy change in the kernel; put back by `down`.
const KERNEL_SETTINGS: &[&str] = &[
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// A mark in the state directory: kubelet's usual directory was not there before.
const OWN_KUBELET_DIR: &str = "own-kubelet-dir";

/// Starts a fresh cluster; what an earlier run left is removed first. With `keep`, a cluster that works is left as it is.
pub fn up(paths: &Paths, keep: bool) -> Result<()> {
    let same = versions::recorded(&paths.state).is_none_or(|there| there == paths.pair);
    if keep && same && healthy(paths) {
        println!("the cluster is up: KUBECONFIG={}", paths.kubeconfig().display());
        return Ok(());
    }
    let built = versions::releases(paths.pair);
    for tool in built.iter().flat_map(|release| release.programs).chain(&["etcd"]) {
        ensure!(paths.bin(tool).exists(), "{} is missing: run `e2e tools`", paths.bin(tool).display());
    }
    let owner = fs::read_to_string(Path::new(RUN).join("owner")).unwrap_or_default();
    if !owner.is_empty() && Path::new(&owner) != paths.state {
        let other = Paths { state: owner.into(), ..paths.clone() };
        let alive = PROGRAMS.iter().any(|name| process::running(&other, name).is_some());
        ensure!(!alive, "another cluster runs on this machine, its state is in {}", other.state.display());
        down(&other)?;
    }
    down(paths)?;
    let start = Instant::now();
    for port in [ETCD_PORT, ETCD_PORT + 1, API_PORT, 10250, REGISTRY_PORT, PRIVATE_PORT] {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("port {port} is in use by another program"))?;
    }
    for dir in ["log/pods", "pid", "static-pods"] {
        fs::create_dir_all(paths.state.join(dir))?;
    }
    fs::create_dir_all(containerd_dir())?;
    fs::create_dir_all(kubelet_dir())?;
    fs::write(Path::new(RUN).join("owner"), paths.state.as_os_str().as_encoded_bytes())?;
    versions::record(&paths.state, paths.pair)?;
    remember_kernel_settings(paths)?;
    if !Path::new("/var/lib/kubelet").exists() {
        fs::write(paths.state.join(OWN_KUBELET_DIR), "")?;
    }

    let node_ip = node_ip()?;
    config::write(paths, &node_ip)?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("switch on IP forwarding")?;

    start_etcd(paths)?;
    start_containerd(paths)?;
    for name in ["registry", "private-registry"] {
        process::start(paths, name, &mut cmd("docker-registry", ["serve", &format!("{name}.yaml")]))?;
    }
    let apiserver = start_apiserver(paths, &node_ip)?;
    // images while the API server starts
    wait_containerd()?;
    until("the registry", Duration::from_secs(20), &[], || {
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, REGISTRY_PORT)).map_err(Into::into)
    })?;
    crate::images::provide(paths)?;
    wait_apiserver(paths, apiserver)?;
    start_controller_manager(paths, &[])?;
    start_scheduler(paths, &[])?;
    let kubelet = start_kubelet(paths)?;
    let proxy = ["--config=proxy.yaml"];
    process::start(paths, "kube-proxy", &mut cmd(paths.bin("kube-proxy"), proxy))?;

    let answered = until("the node to be Ready", Duration::from_secs(90), &[kubelet], || {
        ensure!(node_ready(paths), "the node is not Ready");
        kubectl(paths, ["get", "serviceaccount", "default"]).text()
    });
    if let Err(error) = answered {
        show_logs(paths, &["kubelet", "containerd", "apiserver", "controller-manager"]);
        return Err(error);
    }
    let (time, kubeconfig) = (start.elapsed().as_secs_f64(), paths.kubeconfig());
    println!("cluster of {} up in {time:.1} s: KUBECONFIG={}", paths.pair.name(), kubeconfig.display());
    Ok(())
}

fn start_etcd(paths: &Paths) -> Result<Process> {
    let client = format!("http://127.0.0.1:{ETCD_PORT}");
    let peer = format!("http://127.0.0.1:{}", ETCD_PORT + 1);
    let mut command = cmd(paths.bin("etcd"), ["--data-dir=etcd", "--unsafe-no-fsync", "--log-level=warn"]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer]);
    process::start(paths, "etcd", &mut command)
}

fn start_apiserver(paths: &Paths, node_ip: &str) -> Result<Process> {
    let mut command = cmd(paths.bin("kube-apiserver"), None::<&str>);
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{ETCD_PORT}"))
        .arg("--bind-address=0.0.0.0")
        .arg(format!("--advertise-address={node_ip}"))
        .arg(format!("--secure-port={API_PORT}"))
        .args(["--tls-cert-file=pki/apiserver.crt", "--tls-private-key-file=pki/apiserver.key"])
        .arg("--client-ca-file=pki/ca.crt")
        .args(["--kubelet-client-certificate=pki/admin.crt", "--kubelet-client-key=pki/admin.key"])
        .arg("--kubelet-certificate-authority=pki/ca.crt")
        .arg("--kubelet-preferred-address-types=InternalIP")
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg("--service-account-key-file=pki/service-accounts.key")
        .arg("--service-account-signing-key-file=pki/service-accounts.key")
        .arg(format!("--service-cluster-ip-range={SERVICE_CIDR}"))
        .args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"])
        .arg("--allow-privileged=true")
        // webhooks are reached by their endpoints, with or without kube-proxy
        .arg("--enable-aggregator-routing=true")
        .args(["--audit-policy-file=audit-policy.yaml", "--audit-log-path=log/audit.log"])
        .args(["--audit-log-maxsize=200", "--audit-log-maxbackup=5"]);
    if paths.pair.has_restart_rules() {
        command.arg("--feature-gates=ContainerRestartRules=true");
    }
    // a cluster that was made before there was this file goes on without it
    if paths.state.join(config::ADMISSION).exists() {
        command.arg(format!("--admission-control-config-file={}", config::ADMISSION));
    }
    process::start(paths, "apiserver", &mut command)
}

fn wait_apiserver(paths: &Paths, apiserver: Process) -> Result<()> {
    let ready = until("the API server", Duration::from_secs(90), &[apiserver], || {
        kubectl(paths, ["get", "--raw", "/readyz"]).text()
    });
    if ready.is_err() {
        show_logs(paths, &["apiserver", "etcd"]);
    }
    ready.map(drop)
}

fn start_controller_manager(paths: &Paths, more: &[&str]) -> Result<Process> {
    let mut command = cmd(paths.bin("kube-controller-manager"), users("controller-manager"));
    command
        .arg("--service-account-private-key-file=pki/service-accounts.key")
        .args(["--root-ca-file=pki/ca.crt", "--use-service-account-credentials"])
        .args(["--bind-address=127.0.0.1", "--leader-elect=false"])
        .args(more);
    process::start(paths, "controller-manager", &mut command)
}

/// Starts the controller manager anew without the controller that asks nodes for heartbeats, and with the speed that
/// thousands of Pods need.
pub fn controller_manager_without_heartbeats(paths: &Paths) -> Result<()> {
    process::stop(paths, "controller-manager", Duration::from_secs(10));
    let more = ["--controllers=*,-node-lifecycle-controller", "--kube-api-qps=200", "--kube-api-burst=400"];
    start_controller_manager(paths, &more).map(drop)
}

fn start_scheduler(paths: &Paths, more: &[&str]) -> Result<Process> {
    let mut command = cmd(paths.bin("kube-scheduler"), users("scheduler"));
    command.args(["--bind-address=127.0.0.1", "--leader-elect=false"]).args(more);
    process::start(paths, "scheduler", &mut command)
}

/// Client limits of a program of the cluster: requests a second, and at once.
pub type Limits = (u32, u32);

/// Starts scheduler and controller manager anew, with these client limits instead of their own, and without that the node
/// controller misses signs of life.
pub fn patient_controllers(paths: &Paths, limits: Option<Limits>) -> Result<()> {
    for name in ["scheduler", "controller-manager"] {
        process::stop(paths, name, Duration::from_secs(10));
    }
    let limits = limits.map(|(qps, burst)| [format!("--kube-api-qps={qps}"), format!("--kube-api-burst={burst}")]);
    let mut more: Vec<&str> = limits.iter().flatten().map(String::as_str).collect();
    start_scheduler(paths, &more)?;
    more.push("--node-monitor-grace-period=24h");
    start_controller_manager(paths, &more).map(drop)
}

fn users(name: &str) -> [String; 3] {
    ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
        .map(|flag| format!("--{flag}={name}.kubeconfig"))
}

pub fn start_containerd(paths: &Paths) -> Result<Process> {
    let mut command = cmd(paths.runtime("containerd"), ["-c", "containerd.toml"]);
    // it looks there for its shim
    process::start(paths, "containerd", command.env("PATH", search_path(paths)))
}

pub fn wait_containerd() -> Result<()> {
    until("containerd", Duration::from_secs(30), &[], || ctr(["version"]).text()).map(drop)
}

pub fn start_kubelet(paths: &Paths) -> Result<Process> {
    let mut command = cmd(paths.bin("kubelet"), ["--config=kubelet.yaml", "--kubeconfig=kubelet.kubeconfig", "--v=2"]);
    command
        .arg(format!("--hostname-override={NODE}"))
        // loopback is refused, and without an address there is neither exec nor logs
        .arg(format!("--node-ip={}", node_ip()?))
        .arg(format!("--root-dir={}", kubelet_dir().display()));
    process::start(paths, "kubelet", &mut command)
}

/// Stops one program and starts it again, as a crash (`KILL`) or an upgrade (`TERM`) would.
pub fn restart(paths: &Paths, name: &str, signal: &str) -> Result<()> {
    let process = process::running(paths, name).with_context(|| format!("{name} does not run"))?;
    process.signal(signal);
    ensure!(process.wait_end(Duration::from_secs(20)), "{name} does not end on {signal}");
    match name {
        "containerd" => {
            start_containerd(paths)?;
            wait_containerd()
        }
        "kubelet" => start_kubelet(paths).map(drop),
        "apiserver" => {
            until("the port", Duration::from_secs(10), &[], || {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, API_PORT)).map_err(Into::into)
            })?;
            let apiserver = start_apiserver(paths, &node_ip()?)?;
            wait_apiserver(paths, apiserver)
        }
        "controller-manager" => start_controller_manager(paths, &[]).map(drop),
        _ => bail!("nothing knows how to restart {name}"),
    }
}

fn node_ready(paths: &Paths) -> bool {
    let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    kubectl(paths, ["get", "node", NODE, "-o", path, "--request-timeout=5s"]).text().is_ok_and(|s| s.trim() == "True")
}

/// Every program runs and the node is Ready.
pub fn healthy(paths: &Paths) -> bool {
    PROGRAMS.iter().all(|name| process::running(paths, name).is_some()) && node_ready(paths)
}

pub fn status(paths: &Paths) -> Result<()> {
    for name in PROGRAMS {
        match process::running(paths, name) {
            Some(p) => println!("{name:<20} pid {}", p.pid),
            None => println!("{name:<20} does not run"),
        }
    }
    if process::running(paths, "apiserver").is_some() {
        println!("KUBECONFIG={}", paths.kubeconfig().display());
        kubectl(paths, ["get", "nodes,pods", "-A", "-o", "wide", "--request-timeout=5s"]).show()?;
    }
    Ok(())
}

/// The machine's own address.
fn node_ip() -> Result<String> {
    let text = cmd("ip", ["-4", "-o", "addr", "show", "up", "scope", "global"]).text()?;
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(1).is_some_and(|link| *link != BRIDGE))
        .find_map(|words| Some(words.get(3)?.split('/').next()?.to_owned()))
        .context("this machine has no IPv4 address besides loopback")
}

/// Stops and removes everything; whatever is not there is passed over, so it can be run at any time.
pub fn down(paths: &Paths) -> Result<()> {
    let state = &paths.state;
    let had_proxy = state.join("pid/kube-proxy").exists() || state.join("proxy.yaml").exists();
    let patience = Duration::from_secs(10);
    for name in process::recorded_names(paths).iter().filter(|name| name.starts_with(LOAD)) {
        process::stop(paths, name, patience);
    }
    for name in ["kube-proxy", "kubelet", "scheduler", "controller-manager", "apiserver"] {
        process::stop(paths, name, patience);
    }
    let shims = shims();
    let shim_sockets = shim_sockets(state);
    for process in process::descendants(&shims) {
        process.signal("KILL");
    }
    process::stop(paths, "containerd", patience);
    for shim in &shims {
        shim.signal("KILL");
    }
    for shim in shims {
        shim.wait_end(Duration::from_secs(5));
    }
    process::stop(paths, "registry", patience);
    process::stop(paths, "private-registry", patience);
    process::stop(paths, "etcd", patience);
    for socket in shim_sockets {
        let _ = fs::remove_file(socket);
    }
    if had_proxy && paths.bin("kube-proxy").exists() {
        let _ = cmd(paths.bin("kube-proxy"), ["--cleanup"]).answer();
    }
    if state.exists() {
        remove_firewall_rules();
    }
    unmount_below(&[state, Path::new(RUN)])?;
    let _ = cmd("ip", ["link", "delete", BRIDGE]).answer();
    remove_cgroups();
    remove_network_cache();
    remove_kubelet_leftovers(state);
    restore_kernel_settings(paths);
    keep_logs(paths)?;
    for dir in [state.as_path(), Path::new(RUN)] {
        if dir.exists() {
            fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
        }
    }
    Ok(())
}

/// The shims of our containerd: they outlive it on purpose. Those of another one have another socket.
fn shims() -> Vec<Process> {
    let socket = containerd_socket();
    process::find(|args| {
        args[0].ends_with("containerd-shim-runc-v2") && args.iter().any(|a| Path::new(a) == socket.as_path())
    })
}

/// containerd keeps the shims' sockets in a directory of the machine; each bundle names its own.
fn shim_sockets(state: &Path) -> Vec<String> {
    let bundles = state.join("containerd/state/io.containerd.runtime.v2.task/k8s.io");
    let Ok(entries) = fs::read_dir(bundles) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| {
            // containerd 2 writes how to connect into a file of its own
            let address = fs::read_to_string(e.path().join("address"));
            address.or_else(|_| fs::read_to_string(e.path().join("bootstrap.json"))).ok()
        })
        .filter_map(|text| shim_socket(&text))
        .filter(|path| path.starts_with("/run/containerd/s/"))
        .collect()
}

/// The socket that a bundle names: its address, or JSON with the field `address`.
fn shim_socket(text: &str) -> Option<String> {
    let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let address = match &json {
        Some(json) => json.get("address")?.as_str()?,
        None => text.trim(),
    };
    Some(address.strip_prefix("unix://")?.to_owned())
}

fn unmount_below(dirs: &[&Path]) -> Result<()> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let points: Vec<&str> = mounts.lines().filter_map(|l| l.split(' ').nth(1)).collect();
    for point in points.into_iter().rev().filter(|p| dirs.iter().any(|d| Path::new(p).starts_with(d))) {
        // blanks are written as \040 there; our paths have none
        let _ = cmd("umount", ["-l", point]).answer();
    }
    Ok(())
}

/// Chains of kubelet and of the port mapping, which `kube-proxy --cleanup` leaves.
fn remove_firewall_rules() {
    let ours = |chain: &str| chain.starts_with("KUBE-") || chain.starts_with("CNI-");
    for program in ["iptables", "ip6tables"] {
        for table in ["filter", "nat", "mangle"] {
            let Ok(rules) = cmd(program, ["-w", "-t", table, "-S"]).text() else { continue };
            let run = |args: &[&str]| {
                let _ = cmd(program, ["-w", "-t", table]).args(args).answer();
            };
            for rule in rules.lines() {
                let words: Vec<&str> = rule.split(' ').collect();
                let target = words.iter().position(|w| *w == "-j").and_then(|at| words.get(at + 1));
                if words[0] == "-A" && !ours(words[1]) && target.is_some_and(|t| ours(t)) {
                    // a rule may hold quoted blanks: let a shell take it apart as it was put together
                    let line = format!("{program} -w -t {table} -D {}", &rule[3..]);
                    let _ = cmd("sh", ["-c", &line]).answer();
                }
            }
            let chains = || rules.lines().filter_map(|r| r.strip_prefix("-N ")).filter(|c| ours(c));
            chains().for_each(|chain| run(&["-F", chain]));
            chains().for_each(|chain| run(&["-X", chain]));
        }
    }
}

/// kubelet's tree and containerd's, in every hierarchy (version 1) or in the only one (version 2).
fn remove_cgroups() {
    fn remove(dir: &Path) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                remove(&entry.path());
            }
        }
        let _ = fs::remove_dir(dir);
    }
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path());
    for hierarchy in hierarchies.chain([root.to_path_buf()]) {
        remove(&hierarchy.join("kubepods"));
    }
}

fn remove_network_cache() {
    for dir in ["/var/lib/cni/results", "/var/lib/cni/cache/results"] {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(BRIDGE) || name.starts_with("cni-loopback-") {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// What kubelet makes outside the directory it is given.
fn remove_kubelet_leftovers(state: &Path) {
    for entry in fs::read_dir("/var/log/containers").into_iter().flatten().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(state)) {
            let _ = fs::remove_file(entry.path());
        }
    }
    if state.join(OWN_KUBELET_DIR).exists() {
        let _ = fs::remove_dir_all("/var/lib/kubelet/device-plugins");
        for dir in ["/var/lib/kubelet", "/var/log/containers"] {
            // only if empty
            let _ = fs::remove_dir(dir);
        }
    }
}

/// The logs outlive the cluster until the next one goes, so that a failed run can be looked into.
fn keep_logs(paths: &Paths) -> Result<()> {
    let kept = paths.kept_logs();
    if paths.logs().exists() {
        let _ = fs::remove_dir_all(&kept);
        fs::create_dir_all(&paths.cluster)?;
        cmd("cp", ["-a"]).arg(paths.logs()).arg(&kept).text()?;
    }
    Ok(())
}

fn remember_kernel_settings(paths: &Paths) -> Result<()> {
    let lines: Vec<String> = KERNEL_SETTINGS
        .iter()
        .filter_map(|name| {
            let value = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
            Some(format!("{name} {}", value.trim()))
        })
        .collect();
    Ok(fs::write(paths.state.join("kernel-settings"), lines.join("\n"))?)
}

fn restore_kernel_settings(paths: &Paths) {
    let saved = fs::read_to_string(paths.state.join("kernel-settings")).unwrap_or_default();
    for (name, value) in saved.lines().filter_map(|l| l.split_once(' ')) {
        let file = Path::new("/proc/sys").join(name);
        if fs::read_to_string(&file).is_ok_and(|now| now.trim() != value) {
            let _ = fs::write(file, value);
        }
    }
}

/// For a failure: where the logs are, and their ends.
pub fn show_logs(paths: &Paths, names: &[&str]) {
    for name in names {
        let path = paths.logs().join(format!("{name}.log"));
        let text = fs::read_to_string(&path).unwrap_or_default();
        eprintln!("--- end of {}\n{}", path.display(), tail(&text, 15));
    }
}

#[cfg(test)]
mod tests {
    use super::shim_socket;

    #[test]
    fn a_bundle_names_its_socket_in_both_versions_of_containerd() {
        for (text, socket) in [
            ("unix:///run/containerd/s/abc", Some("/run/containerd/s/abc")),
            ("unix:///run/containerd/s/abc\n", Some("/run/containerd/s/abc")),
            (
                r#"{"version":3,"address":"unix:///run/containerd/s/abc","protocol":"ttrpc"}"#,
                Some("/run/containerd/s/abc"),
            ),
            (r#"{"version":3}"#, None),
            ("vsock://1:2", None),
        ] {
            assert_eq!(shim_socket(text).as_deref(), socket, "{text}");
        }
    }
}
