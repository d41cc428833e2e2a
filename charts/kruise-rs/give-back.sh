#!/bin/sh
# Moves a cluster from a Helm release of kruise-rs back to OpenKruise. Definitions, workloads and their Pods stay.
# If it stops on the way, mend what it names and run it again.
#
#   charts/kruise-rs/give-back.sh CHART [FLAG OF HELM...]     OpenKruise's chart, for example
#                                                             openkruise/kruise --version 1.9.0 --values my.yaml
#   environment: KUBECTL, HELM, TIMEOUT (default 300s), SAVE (directory for what is saved, default kruise-rs-before),
#                RELEASE (of kruise-rs, default kruise-rs), NAMESPACE (of both installations, default kruise-system),
#                OLD_RELEASE (OpenKruise's, default kruise) and OLD_NAMESPACE (of that release, default NAMESPACE),
#                UNINSTALL (default: manifests/uninstall.sh of this checkout)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kubectl=${KUBECTL:-kubectl}
helm=${HELM:-helm}
timeout=${TIMEOUT:-300s}
save=${SAVE:-kruise-rs-before}
release=${RELEASE:-kruise-rs}
system=${NAMESPACE:-kruise-system}
old_release=${OLD_RELEASE:-kruise}
old_namespace=${OLD_NAMESPACE:-$system}
uninstall=${UNINSTALL:-$here/../../manifests/uninstall.sh}
ours='app.kubernetes.io/name=kruise-rs,control-plane in (controller-manager, webhook, daemon)'

case "${1:-}" in
  '' | -*) echo "usage: $0 CHART [FLAG OF HELM...]" >&2; exit 2 ;;
esac
chart=$1
shift

refuse() {
  echo "$*" >&2
  echo "nothing was changed" >&2
  exit 1
}

# Names are put into commands below.
for name in "$release" "$system" "$old_release" "$old_namespace"; do
  case "$name" in
    '' | *[!a-z0-9.-]*) echo "\"$name\" is not the name of a release or namespace" >&2; exit 2 ;;
  esac
done

# Whether a release is recorded. The script ends when Helm does not say.
recorded() {
  list=$($helm list --namespace "$2" --filter "^$1\$" --short) || exit 1
  [ -n "$list" ]
}

pods_left() {
  $kubectl get pods --namespace "$system" -l "$ours" -o name
}

# ---- what has to be so before anything is changed ----

case $($helm version --template '{{.Version}}') in
  v[4-9]* | v[1-9][0-9]*) ;;
  *) refuse "this needs Helm 4 or later" ;;
esac
[ -x "$uninstall" ] || refuse "$uninstall is not there; run this from a checkout, or set UNINSTALL"
if [ "$old_release $old_namespace" = "$release $system" ]; then
  refuse "OpenKruise's release needs another name than $release; set OLD_RELEASE"
fi
if recorded "$old_release" "$old_namespace"; then
  refuse "release $old_release is recorded in namespace $old_namespace: upgrading or uninstalling it can delete definitions, and all workloads with them. If it is left from before the move, delete its record: kubectl -n $old_namespace delete secret,configmap -l owner=helm,name=$old_release"
fi
if recorded "$release" "$system"; then
  installed=true
else
  installed=false
  # As after a run that has got further; nothing of ours may be left then.
  left=$(pods_left) || refuse "the Pods of namespace $system cannot be listed (see above)"
  [ -z "$left" ] || refuse "kruise-rs runs in namespace $system, but not by a release $release; set RELEASE"
fi
if $installed; then
  # Helm deletes what the record does not tell it to keep.
  manifest=$($helm get manifest "$release" --namespace "$system") ||
    refuse "Helm does not give the manifest of release $release (see above)"
  lost=$(printf '%s\n' "$manifest" | awk 'function flush() { if (crd && !keep) print name; crd = keep = 0; name = "" }
      /^---/ { flush() } /^kind: CustomResourceDefinition/ { crd = 1 } /^    helm.sh\/resource-policy: keep/ { keep = 1 }
      /^  name: / { name = $2 } END { flush() }')
  [ -z "$lost" ] || refuse "the release would delete these definitions and all their objects: $lost"
fi
requests=$($kubectl get containerrecreaterequests.apps.kruise.io --all-namespaces \
  -o go-template='{{range .items}}{{$phase := ""}}{{with .status}}{{with .phase}}{{$phase = .}}{{end}}{{end}}{{if ne $phase "Completed"}}{{.metadata.namespace}}/{{.metadata.name}} {{end}}{{end}}')
[ -z "$requests" ] || refuse "these ContainerRecreateRequests have not ended: $requests"
umask 077
mkdir -p "$save"
$helm template "$old_release" "$chart" --namespace "$old_namespace" "$@" >"$save/openkruise.yaml" ||
  refuse "Helm cannot render $chart with these flags (see above)"
# The API server would refuse a definition without a version in which objects are stored, with kruise-rs gone already.
definitions=$($kubectl get customresourcedefinitions \
  -o go-template='{{range .items}}{{.metadata.name}}{{range .status.storedVersions}} {{.}}{{end}}{{"\n"}}{{end}}')
lacks() {
  awk -v crd="$1" -v version="$2" '/^---/ { here = 0 } $1 == "name:" && $2 == crd { here = seen = 1 }
    here && (($1 == "name:" && $2 == version) || ($1 == "-" && $2 == "name:" && $3 == version)) { found = 1 }
    END { exit !(seen && !found) }' "$save/openkruise.yaml"
}
while read -r name versions; do
  for version in $versions; do
    if lacks "$name" "$version"; then
      refuse "objects of $name are stored in version $version, which $chart does not have: give back to OpenKruise 1.9 or later"
    fi
  done
done <<END
$definitions
END

# ---- uninstall kruise-rs ----

if $installed; then
  echo "saving requests and values in $save"
  $kubectl get containerrecreaterequests.apps.kruise.io,workloadrestarts.kruise.rs --all-namespaces -o yaml >"$save/requests.yaml"
  $helm get values "$release" --namespace "$system" -o yaml >"$save/values.yaml"
  # It releases Pods and finalizers, which Helm does not.
  KUBECTL="$kubectl" NAMESPACE="$system" TIMEOUT="$timeout" "$uninstall"
  $helm uninstall "$release" --namespace "$system"
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
  echo "these policies of kruise-rs are left and would refuse writes of OpenKruise; delete them and run this again:" >&2
  echo "$policies" >&2
  exit 1
fi

# ---- install OpenKruise ----

$helm install "$old_release" "$chart" --namespace "$old_namespace" --take-ownership --force-conflicts "$@"
for workload in deployment/kruise-controller-manager daemonset/kruise-daemon; do
  $kubectl rollout status --namespace "$system" "$workload" --timeout="$timeout"
done
echo "done. Until OpenKruise has written its CA into its webhook configurations, Pods cannot be created: docs/moving-from-openkruise.md, Back, step 4"
