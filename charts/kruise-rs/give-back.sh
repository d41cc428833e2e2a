#!/bin/sh
# Moves a cluster from a Helm release of kruise-rs back to OpenKruise. Definitions, workloads and their Pods stay.
# If it stops on the way, mend what it names and run it again.
#
#   charts/kruise-rs/give-back.sh CHART [FLAG OF HELM...]     OpenKruise's chart, for example
#                                                             openkruise/kruise --version 1.9.0 --values my.yaml;
#                                                             no flag for another cluster or namespace
#   environment: KUBECTL, HELM, TIMEOUT (default 300s), SAVE (directory for what is saved, default kruise-rs-before),
#                RELEASE (of kruise-rs, default kruise-rs), NAMESPACE (of both installations, default kruise-system),
#                RELEASE_NAMESPACE (in which RELEASE is recorded, default NAMESPACE),
#                OLD_RELEASE (OpenKruise's, default kruise) and OLD_NAMESPACE (of that release, default NAMESPACE),
#                UNINSTALL (default: manifests/uninstall.sh of this checkout),
#                KUBECONFIG for another cluster, or KUBECTL='kubectl --context C' HELM='helm --kube-context C'
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kubectl=${KUBECTL:-kubectl}
helm=${HELM:-helm}
timeout=${TIMEOUT:-300s}
save=${SAVE:-kruise-rs-before}
release=${RELEASE:-kruise-rs}
system=${NAMESPACE:-kruise-system}
release_namespace=${RELEASE_NAMESPACE:-$system}
old_release=${OLD_RELEASE:-kruise}
old_namespace=${OLD_NAMESPACE:-$system}
uninstall=${UNINSTALL:-$here/../../manifests/uninstall.sh}
ours='app.kubernetes.io/name=kruise-rs,control-plane in (controller-manager, webhook, daemon)'

# shellcheck source=charts/kruise-rs/moving.sh
. "$here/moving.sh"
case "${1:-}" in
  '' | -*) echo "usage: $0 CHART [FLAG OF HELM...]" >&2; exit 2 ;;
esac
chart=$1
shift
check_flags "$@"
check_names "$release" "$system" "$release_namespace" "$old_release" "$old_namespace"
# For the command in a message below.
flags=$*

pods_left() {
  $kubectl get pods --namespace "$system" -l "$ours" -o name
}

# "kind namespace name release namespace-of-the-release" of every Deployment and DaemonSet of kruise-rs.
workloads() {
  $kubectl get deployments,daemonsets --all-namespaces -l app.kubernetes.io/name=kruise-rs \
    -o go-template='{{range .items}}{{.kind}} {{.metadata.namespace}} {{.metadata.name}}{{with .metadata.annotations}}{{with index . "meta.helm.sh/release-name"}} {{.}}{{end}}{{with index . "meta.helm.sh/release-namespace"}} {{.}}{{end}}{{end}}{{"\n"}}{{end}}'
}

# What runs has to be in the namespace of this run, and of the release that Helm knows: everything of kruise-rs that is not in a
# namespace would go too.
check_workloads() {
  found=$(workloads) || refuse "the workloads of the cluster cannot be listed (see above)"
  while read -r kind namespace name of of_namespace; do
    [ -n "$name" ] || continue
    if [ "$namespace" != "$system" ]; then
      refuse "kruise-rs is installed in namespace $namespace ($kind $name), not in $system; run this with NAMESPACE=$namespace"
    fi
    $installed ||
      refuse "kruise-rs runs in namespace $system ($kind $name), and Helm has recorded no release $release in namespace $release_namespace; ${of:+run this with RELEASE=$of RELEASE_NAMESPACE=$of_namespace, or }follow docs/moving-from-openkruise.md, Back"
  done <<END
$found
END
}

# The definitions in a manifest: "name keep", or "name -" where Helm may delete it.
definitions() {
  awk 'function flush() { if (crd) print name, keep ? "keep" : "-"; crd = keep = 0; name = "" }
    /^---/ { flush() } /^kind: CustomResourceDefinition/ { crd = 1 } /^    helm.sh\/resource-policy: keep/ { keep = 1 }
    /^  name: / { name = $2 } END { flush() }'
}

# Helm deletes what its record does not tell it to keep.
check_our_record() {
  manifest=$($helm get manifest "$release" --namespace "$release_namespace") ||
    refuse "Helm does not give the manifest of release $release (see above)"
  lost=$(printf '%s\n' "$manifest" | definitions | awk '$2 != "keep" { print $1 }')
  [ -z "$lost" ] || refuse "the release would delete these definitions and all their objects: $lost"
}

# Upgrading OpenKruise's release deletes the definitions that its record has and the chart has not. Only a record that comes from
# the last step of an earlier run is upgraded.
check_old_record() {
  recorded "$old_release" "$old_namespace" || return 0
  if $installed || [ "$(cat "$save/installing" 2>/dev/null)" != "$old_release $old_namespace" ]; then
    refuse "release $old_release is recorded in namespace $old_namespace: upgrading or uninstalling it can delete definitions, and all workloads with them. If it is left from before the move, delete its record: $(forget "$old_release" "$old_namespace")"
  fi
  manifest=$($helm get manifest "$old_release" --namespace "$old_namespace") ||
    refuse "Helm does not give the manifest of release $old_release (see above)"
  had=$(printf '%s\n' "$manifest" | definitions | awk '$2 != "keep" { print $1 }')
  has=" $(definitions <"$save/rendered.yaml" | awk '{ printf "%s ", $1 }')"
  for name in $had; do
    case "$has" in
      *" $name "*) ;;
      *) refuse "upgrading release $old_release to $chart would delete the definition $name and all its objects: take the chart of the run before, or delete the record first: $(forget "$old_release" "$old_namespace")" ;;
    esac
  done
}

# Whether the rendered chart has a definition without a version.
lacks() {
  awk -v crd="$1" -v version="$2" '/^---/ { here = 0 } $1 == "name:" && $2 == crd { here = seen = 1 }
    here && (($1 == "name:" && $2 == version) || ($1 == "-" && $2 == "name:" && $3 == version)) { found = 1 }
    END { exit !(seen && !found) }' "$save/rendered.yaml"
}

# The API server would refuse a definition without a version in which objects are stored, with kruise-rs gone already.
check_versions() {
  stored=$($kubectl get customresourcedefinitions \
    -o go-template='{{range .items}}{{.metadata.name}}{{range .status.storedVersions}} {{.}}{{end}}{{"\n"}}{{end}}')
  while read -r name versions; do
    for version in $versions; do
      if lacks "$name" "$version"; then
        refuse "objects of $name are stored in version $version, which $chart does not have: give back to OpenKruise 1.9 or later"
      fi
    done
  done <<END
$stored
END
}

# ---- what has to be so before anything is changed ----

check_helm
check_saved
[ -x "$uninstall" ] || refuse "$uninstall is not there; run this from a checkout, or set UNINSTALL"
if [ "$old_release $old_namespace" = "$release $release_namespace" ]; then
  refuse "OpenKruise's release needs another name than $release; set OLD_RELEASE"
fi
installed=false
! recorded "$release" "$release_namespace" || installed=true
check_workloads
! $installed || check_our_record
check_requests
make_saved
$helm template "$old_release" "$chart" --namespace "$old_namespace" "$@" >"$save/rendered.yaml" ||
  refuse "Helm cannot render $chart with these flags (see above)"
check_old_record
check_versions

# ---- uninstall kruise-rs ----

if $installed; then
  echo "saving requests and values in $save"
  rm -f "$save/installing"
  $kubectl get containerrecreaterequests.apps.kruise.io,workloadrestarts.kruise.rs --all-namespaces -o yaml >"$save/requests.yaml"
  $helm get values "$release" --namespace "$release_namespace" -o yaml >"$save/kruise-rs-values.yaml"
  # It releases Pods and finalizers, which Helm does not.
  KUBECTL="$kubectl" NAMESPACE="$system" TIMEOUT="$timeout" "$uninstall"
  $helm uninstall "$release" --namespace "$release_namespace"
fi
# Two daemons on a node would both stop containers, and policies of ours would refuse what OpenKruise's manager writes.
if [ -n "$(pods_left)" ]; then
  $kubectl wait pods --namespace "$system" -l "$ours" --for=delete --timeout="$timeout" || true
fi
left=$(pods_left)
if [ -n "$left" ]; then
  echo "these Pods of kruise-rs are not gone within $timeout; run this again when they are:" >&2
  echo "$left" >&2
  exit 1
fi
policies=$($kubectl get validatingadmissionpolicies -l app.kubernetes.io/name=kruise-rs -o name)
if [ -n "$policies" ]; then
  # Of an installation that runs they are no leftovers.
  found=$(workloads)
  if [ -n "$found" ]; then
    echo "kruise-rs is still installed; run this again when this is gone:" >&2
    echo "$found" >&2
    exit 1
  fi
  echo "these policies of kruise-rs are left and would refuse writes of OpenKruise; delete them and run this again:" >&2
  echo "$policies" >&2
  exit 1
fi

# ---- install OpenKruise ----

# From here on a record of OpenKruise's release is that of this run.
echo "$old_release $old_namespace" >"$save/installing"
not_yet() {
  {
    echo "OpenKruise is not installed completely (see above). Mend that and run this again with SAVE=$save, or go on with:"
    echo "$helm upgrade --install $old_release $chart --namespace $old_namespace --take-ownership --force-conflicts${flags:+ $flags}"
    echo "If Helm says that another operation is in progress, delete its record first: $(forget "$old_release" "$old_namespace")"
  } >&2
  exit 1
}
$helm upgrade --install "$old_release" "$chart" --namespace "$old_namespace" --take-ownership --force-conflicts "$@" || not_yet
for workload in deployment/kruise-controller-manager daemonset/kruise-daemon; do
  $kubectl rollout status --namespace "$system" "$workload" --timeout="$timeout" || not_yet
done
rm -f "$save/installing"
echo "done. Until OpenKruise has written its CA into its webhook configurations, Pods cannot be created: docs/moving-from-openkruise.md, Back, step 4"
