//! The files that the programs of the cluster read: certificates, kubeconfigs, configurations.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cmd::{CommandExt, cmd};
use crate::images::PAUSE;
use crate::paths::{
    API_PORT, BRIDGE, FAULTY_PORT, NODE, POD_CIDR, PRIVATE_PORT, Paths, REGISTRY_PORT, RUN, containerd_socket,
};
use crate::versions::Pair;

pub const SERVICE_CIDR: &str = "10.96.0.0/16";
const API_SERVICE_IP: &str = "10.96.0.1";

/// Who may pull from the private registry: name and password.
pub const PULLER: (&str, &str) = ("puller", "not-for-everybody");
/// The password's bcrypt hash, which the registry wants.
const PULLER_HASH: &str = "$2b$05$abcdefghijklmnopqrstuuiESjhV0E91QjdBVZk.ipY7Jz7cKCK4G";

/// Writes everything under the state directory.
pub fn write(paths: &Paths, node_ip: &str) -> Result<()> {
    certificates(&paths.state.join("pki"), node_ip)?;
    for user in ["admin", "load", "controller-manager", "scheduler", "kubelet"] {
        put(paths, &format!("{user}.kubeconfig"), &kubeconfig(paths, user))?;
    }
    put(paths, "containerd.toml", &containerd(paths))?;
    put(paths, "cni/10-bridge.conflist", &cni(paths))?;
    put(paths, "registry.yaml", &registry(paths, REGISTRY_PORT))?;
    let htpasswd = paths.state.join("htpasswd");
    let private =
        format!("{}auth: {{htpasswd: {{realm: e2e, path: {}}}}}\n", registry(paths, PRIVATE_PORT), htpasswd.display());
    put(paths, "private-registry.yaml", &private)?;
    put(paths, "htpasswd", &format!("{}:{PULLER_HASH}\n", PULLER.0))?;
    put(paths, "audit-policy.yaml", AUDIT_POLICY)?;
    put(paths, ADMISSION, &admission(paths))?;
    put(paths, "webhooks.kubeconfig", &webhooks(paths))?;
    put(paths, "kubelet.yaml", &kubelet(paths))?;
    put(paths, "proxy.yaml", &proxy(paths))
}

fn put(paths: &Paths, name: &str, text: &str) -> Result<()> {
    let path = paths.state.join(name);
    fs::create_dir_all(path.parent().context("a file has a directory")?)?;
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

fn certificates(pki: &Path, node_ip: &str) -> Result<()> {
    fs::create_dir_all(pki)?;
    let openssl = |args: &str| cmd("openssl", args.split(' ')).current_dir(pki).text().map(drop);
    let key = |name: &str| openssl(&format!("ecparam -genkey -name prime256v1 -noout -out {name}.key"));
    key("ca")?;
    openssl("req -x509 -new -key ca.key -days 3650 -out ca.crt -subj /CN=e2e-ca")?;
    key("service-accounts")?;
    let certificate = |name: &str, subject: &str, alternatives: &str| -> Result<()> {
        key(name)?;
        openssl(&format!("req -new -key {name}.key -subj {subject} -out {name}.csr"))?;
        let extensions = format!("subjectAltName={alternatives}\nextendedKeyUsage=serverAuth,clientAuth\n");
        fs::write(pki.join(format!("{name}.ext")), extensions)?;
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile {name}.ext -out {name}.crt"
        ))
    };
    let local = "IP:127.0.0.1";
    certificate(
        "apiserver",
        "/CN=kube-apiserver",
        &format!("DNS:localhost,DNS:kubernetes.default.svc,{local},IP:{API_SERVICE_IP},IP:{node_ip}"),
    )?;
    certificate("admin", "/O=system:masters/CN=admin", "DNS:admin")?;
    certificate("load", "/O=system:masters/CN=load", "DNS:load")?;
    certificate("webhooks", &format!("/CN={WEBHOOK_CALLER}"), "DNS:webhooks")?;
    certificate("controller-manager", "/CN=system:kube-controller-manager", "DNS:controller-manager")?;
    certificate("scheduler", "/CN=system:kube-scheduler", "DNS:scheduler")?;
    certificate(
        "kubelet",
        &format!("/O=system:nodes/CN=system:node:{NODE}"),
        &format!("DNS:{NODE},{local},IP:{node_ip}"),
    )
}

/// The API server's settings for admission.
pub const ADMISSION: &str = "admission.yaml";
/// The name in the certificate that the API server shows to our webhook.
pub const WEBHOOK_CALLER: &str = "kube-apiserver-webhooks";

fn admission(paths: &Paths) -> String {
    let plugin = |name: &str| {
        format!(
            "- name: {name}\n  configuration: {{apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, \
             kubeConfigFile: {}/webhooks.kubeconfig}}\n",
            paths.state.display()
        )
    };
    let plugins = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"].map(plugin).concat();
    format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n{plugins}")
}

/// Which certificate is shown to which webhook: to ours alone.
fn webhooks(paths: &Paths) -> String {
    let pki = paths.state.join("pki");
    let pki = pki.display();
    format!(
        r#"apiVersion: v1
kind: Config
users: [{{name: kruise-webhook-service.kruise-system.svc, user: {{client-certificate: {pki}/webhooks.crt, client-key: {pki}/webhooks.key}}}}]
"#
    )
}

fn kubeconfig(paths: &Paths, user: &str) -> String {
    let pki = paths.state.join("pki");
    let pki = pki.display();
    format!(
        r#"apiVersion: v1
kind: Config
clusters: [{{name: e2e, cluster: {{server: "https://127.0.0.1:{API_PORT}", certificate-authority: {pki}/ca.crt}}}}]
users: [{{name: {user}, user: {{client-certificate: {pki}/{user}.crt, client-key: {pki}/{user}.key}}}}]
contexts: [{{name: e2e, context: {{cluster: e2e, user: {user}}}}}]
current-context: e2e
"#
    )
}

fn containerd(paths: &Paths) -> String {
    let state = paths.state.display();
    let socket = containerd_socket();
    let socket = socket.display();
    format!(
        r#"version = 2
root = "{state}/containerd/root"
state = "{state}/containerd/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # without CAP_SYS_RESOURCE nothing may lower oom_score_adj, and every sandbox would fail to start
  restrict_oom_score_adj = true
  # so that `down` finds and removes the network namespaces of Pods that were not stopped in order
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."*"]
    endpoint = ["http://127.0.0.1:{REGISTRY_PORT}"]
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."private.example"]
    endpoint = ["http://127.0.0.1:{PRIVATE_PORT}"]
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."faulty.example"]
    endpoint = ["http://127.0.0.1:{FAULTY_PORT}"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{state}/cni"
"#
    )
}

fn cni(paths: &Paths) -> String {
    let ipam = serde_json::json!({
        "type": "host-local",
        "dataDir": paths.state.join("cni-addresses"),
        "ranges": [[{ "subnet": POD_CIDR }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    let bridge = serde_json::json!(
        { "type": "bridge", "bridge": BRIDGE, "isGateway": true, "hairpinMode": true, "ipam": ipam });
    let ports = serde_json::json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    serde_json::json!({ "cniVersion": "0.4.0", "name": BRIDGE, "plugins": [bridge, ports] }).to_string()
}

fn registry(paths: &Paths, port: u16) -> String {
    let state = paths.state.display();
    format!(
        r#"version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {state}/registry}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"#
    )
}

/// Who did what to which object, without bodies: real use, to be compared with the rights that the manifests ask for.
const AUDIT_POLICY: &str = r"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [load, system:apiserver, system:kube-scheduler, system:kube-controller-manager]
- level: None
  userGroups: [system:serviceaccounts:kube-system]
- level: None
  nonResourceURLs: ['/healthz*', '/livez*', '/readyz*', '/version', '/openapi/*']
- level: None
  userGroups: [system:nodes]
  resources: [{group: coordination.k8s.io}]
- level: Metadata
";

fn kubelet(paths: &Paths) -> String {
    let state = paths.state.display();
    let socket = containerd_socket();
    let socket = socket.display();
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
port: 10250
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {state}/pki/ca.crt}}}}
authorization: {{mode: Webhook}}
cgroupDriver: cgroupfs
# nobody serves names here; without an address kubelet warns about every Pod
clusterDNS: ["10.96.0.10"]
clusterDomain: cluster.local
failSwapOn: false
containerRuntimeEndpoint: unix://{socket}
staticPodPath: {static_pods}
fileCheckFrequency: 1s
podLogsDir: {state}/log/pods
imageGCHighThresholdPercent: 100
evictionHard: {{nodefs.available: "0%", imagefs.available: "0%", memory.available: "1Mi"}}
enforceNodeAllocatable: []
maxPods: 250
tlsCertFile: {state}/pki/kubelet.crt
tlsPrivateKeyFile: {state}/pki/kubelet.key
{more}"#,
        static_pods = paths.static_pods().display(),
        more = kubelet_of(paths.pair)
    )
}

/// What kubelets of some versions alone know.
fn kubelet_of(pair: &Pair) -> String {
    let gates = "# off by default in 1.34\nfeatureGates: {ContainerRestartRules: true}\n";
    let cgroups = "# a machine may have version 1 of cgroups\nfailCgroupV1: false\n";
    let lines = [(pair.has_restart_rules(), gates), (pair.knows_fail_cgroup_v1(), cgroups)];
    lines.into_iter().filter(|(known, _)| *known).map(|(_, line)| line).collect()
}

fn proxy(paths: &Paths) -> String {
    let state = paths.state.display();
    format!(
        r"apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: {state}/admin.kubeconfig}}
hostnameOverride: {NODE}
mode: iptables
clusterCIDR: {POD_CIDR}
bindAddress: 127.0.0.1
conntrack: {{maxPerCore: 0, min: 0}}
"
    )
}

/// Where the sockets are; short, see [`RUN`].
pub fn kubelet_dir() -> std::path::PathBuf {
    Path::new(RUN).join("kubelet")
}

#[cfg(test)]
mod tests {
    use super::kubelet_of;
    use crate::versions::named;

    #[test]
    fn a_kubelet_is_told_what_its_version_knows() {
        for (pair, lines) in [("1.30+1.6", 0), ("1.32+1.6", 1), ("1.34+2", 2), ("1.37+2", 2)] {
            let text = kubelet_of(named(pair).expect("in the list"));
            let settings = text.lines().filter(|line| !line.starts_with('#')).count();
            assert_eq!(settings, lines, "{pair}: {text}");
            assert_eq!(text.contains("failCgroupV1: false"), lines >= 1, "{pair}: {text}");
        }
    }
}
