#!/bin/sh
# Moves a cluster from OpenKruise's Helm release to a release of kruise-rs. No definition, workload or Pod is deleted:
# never uninstall or upgrade OpenKruise's release instead, its definitions would go and all workloads with them.
# If it stops on the way, mend what it names and run it again.
#
#   charts/kruise-rs/take-over.sh [FLAG OF HELM...]     for example --values my.yaml; none for another cluster or namespace
#   environment: KUBECTL, HELM, TIMEOUT (default 300s), SAVE (directory for what is saved, default openkruise-before),
#                RELEASE (of kruise-rs, default kruise-rs), NAMESPACE (of both installations, default kruise-system),
#                OLD_RELEASE and OLD_NAMESPACE (OpenKruise's release; default: what its objects are annotated with),
#                KUBECONFIG for another cluster, or KUBECTL='kubectl --context C' HELM='helm --kube-context C'
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kubectl=${KUBECTL:-kubectl}
helm=${HELM:-helm}
timeout=${TIMEOUT:-300s}
save=${SAVE:-openkruise-before}
release=${RELEASE:-kruise-rs}
system=${NAMESPACE:-kruise-system}
manager=kruise-controller-manager
daemon=kruise-daemon
theirs='control-plane in (controller-manager, daemon)'
# For the command in a message below.
flags=$*

# shellcheck source=charts/kruise-rs/moving.sh
. "$here/moving.sh"
check_flags "$@"
check_names "$release" "$system" "${OLD_RELEASE:-none}" "${OLD_NAMESPACE:-none}"

# "namespace name program" of every Deployment or DaemonSet that has one of the names.
installed() {
  $kubectl get "$1" --all-namespaces \
    -o go-template='{{range .items}}{{if eq .metadata.name "'"$2"'"}}{{.metadata.namespace}} {{.metadata.name}} {{with .metadata.labels}}{{with index . "app.kubernetes.io/name"}}{{.}}{{end}}{{end}}{{"\n"}}{{end}}{{end}}'
}

annotation() {
  $kubectl get "$1" --namespace "$system" "$2" --ignore-not-found \
    -o go-template='{{with .metadata.annotations}}{{with index . "'"$3"'"}}{{.}}{{end}}{{end}}'
}

# The bindings of OpenKruise's release: "kind namespace name". Its roles stay: those that are aggregated into view, edit and
# admin give users their rights, and the others give none without a binding.
bindings() {
  $kubectl get clusterrolebindings,rolebindings --all-namespaces \
    -o go-template='{{range .items}}{{$m := .metadata}}{{$k := .kind}}{{with .metadata.annotations}}{{if and (eq (or (index . "meta.helm.sh/release-name") "") "'"$old_release"'") (eq (or (index . "meta.helm.sh/release-namespace") "") "'"$old_namespace"'")}}{{$k}} {{or $m.namespace "-"}} {{$m.name}}{{"\n"}}{{end}}{{end}}{{end}}'
}

# Pods of OpenKruise's manager and daemons, also when what has made them is deleted. Other operators give their Pods the same labels:
# the owner counts.
pods_left() {
  owned=$($kubectl get pods --namespace "$system" -l "$theirs" \
    -o go-template='{{range .items}}{{$pod := .metadata.name}}{{range .metadata.ownerReferences}}{{.kind}} {{.name}} {{$pod}}{{"\n"}}{{end}}{{end}}') || exit 1
  while read -r kind owner pod; do
    case "$kind $owner" in
      "ReplicaSet $manager-"*-*) ;;
      "ReplicaSet $manager-"* | "DaemonSet $daemon") echo "pod/$pod" ;;
    esac
  done <<END
$owned
END
}

# Waits as long as they become fewer: kubectl ends too when one is gone before it looks.
wait_for_pods() {
  before=
  left=$(pods_left)
  while [ "$left" != "$before" ]; do
    before=$left
    # shellcheck disable=SC2086
    $kubectl wait --namespace "$system" $left --for=delete --timeout="$timeout" || true
    left=$(pods_left)
  done
}

# By these annotations cert-manager, for example, knows whose CA to write into OpenKruise's webhook configurations.
injection() {
  annotations=$($kubectl get mutatingwebhookconfiguration kruise-mutating-webhook-configuration --ignore-not-found \
    -o go-template='{{range $key, $value := .metadata.annotations}}{{printf "%s: %q\n" $key $value}}{{end}}') || exit 1
  printf '%s\n' "$annotations" | sed -n 's/^[^ ]*\/inject-/    &/p'
}

# In what Helm has recorded it: Secrets, or ConfigMaps with HELM_DRIVER=configmap.
records() {
  $kubectl get secrets,configmaps --namespace "$old_namespace" -l "owner=helm,name=$old_release" "$@"
}

# The list is read first: a pipe would hide that the API server did not give it.
no_conversion() {
  converted=$($kubectl get customresourcedefinitions \
    -o go-template='{{range .items}}{{if .spec.conversion}}{{if eq .spec.conversion.strategy "Webhook"}}{{.metadata.name}}{{"\n"}}{{end}}{{end}}{{end}}') || exit 1
  while read -r name; do
    case "$name" in
      *.apps.kruise.io | *.policy.kruise.io) ;;
      *) continue ;;
    esac
    $kubectl patch customresourcedefinition "$name" --type=merge \
      --patch '{"spec":{"conversion":{"strategy":"None","webhook":null}}}'
  done <<END
$converted
END
}

# ---- what has to be so before anything is changed ----

check_helm
check_saved
manages=false
for kind in deployments:$manager daemonsets:$daemon; do
  found=$(installed "${kind%%:*}" "${kind#*:}")
  while read -r namespace name program; do
    [ -n "$name" ] || continue
    if [ "$program" = kruise-rs ]; then
      refuse "kruise-rs is installed already in namespace $namespace ($name); if a run has failed at its end, go on with: $helm upgrade --install $release $here --namespace $namespace --take-ownership --force-conflicts --values $save/values.yaml${flags:+ $flags}"
    fi
    if [ "$namespace" != "$system" ]; then
      refuse "OpenKruise is installed in namespace $namespace ($name), not in $system; run this with NAMESPACE=$namespace"
    fi
    [ "$name" != "$manager" ] || manages=true
  done <<END
$found
END
done

old_release=${OLD_RELEASE:-}
old_namespace=${OLD_NAMESPACE:-}
# As an earlier run has found it: the definitions may name the release of kruise-rs by now.
if ! $manages && [ -z "$old_release" ] && [ -f "$save/release-name" ]; then
  read -r old_release old_namespace <"$save/release-name"
fi
for object in "deployment $manager" "customresourcedefinition clonesets.apps.kruise.io"; do
  [ -z "$old_release" ] || break
  # shellcheck disable=SC2086
  old_release=$(annotation $object meta.helm.sh/release-name)
  # shellcheck disable=SC2086
  old_namespace=$(annotation $object meta.helm.sh/release-namespace)
done
if [ -z "$old_release" ] || [ -z "$old_namespace" ]; then
  refuse "OpenKruise was not installed by Helm, or not here: no object names its release. Set OLD_RELEASE and OLD_NAMESPACE, or follow docs/moving-from-openkruise.md"
fi
if [ "$old_release $old_namespace" = "$release $system" ]; then
  refuse "the release of kruise-rs needs another name than OpenKruise's, $old_release; set RELEASE"
fi
# A record that is kept elsewhere would outlive what is deleted below, and uninstalling the release deletes the definitions.
kept=$(records -o name)
if [ -z "$kept" ] && recorded "$old_release" "$old_namespace"; then
  refuse "Helm has recorded release $old_release neither in Secrets nor in ConfigMaps of namespace $old_namespace (HELM_DRIVER=${HELM_DRIVER:-}); follow docs/moving-from-openkruise.md"
fi

check_requests

# The API server would refuse a definition without a version in which objects are stored.
for file in "$here"/templates/crds/*.yaml; do
  name=$(basename "$file" .yaml)
  stored=$($kubectl get customresourcedefinition "$name" --ignore-not-found -o jsonpath='{.status.storedVersions[*]}')
  for version in $stored; do
    grep -q "^  [ -] name: $version\$" "$file" ||
      refuse "objects of $name are stored in version $version, which kruise-rs does not have: docs/moving-from-openkruise.md, step 3"
  done
done

make_saved
if $manages; then
  arguments=$($kubectl get deployment --namespace "$system" "$manager" \
    -o jsonpath='{range .spec.template.spec.containers[*]}{range .args[*]}{@}{"\n"}{end}{end}') ||
    refuse "the feature gates of OpenKruise cannot be read (see above)"
  gates=$(printf '%s\n' "$arguments" | sed -n 's/^--feature-gates=//p' | tail -n 1)
  # Those that are on, however that is spelled: " Name = True", Name=1, Name=t. Of several for one name the last counts.
  on=$(printf '%s\n' "$gates" | tr ',' '\n' | awk -F= '
    { gsub(/[ \t]/, ""); value = tolower($2); on[$1] = value == "true" || value == "1" || value == "t" }
    END { for (name in on) if (on[name]) printf ",%s", name; print "," }')
  case "$on" in
    *,EnhancedLivenessProbe,*)
      refuse "OpenKruise runs with EnhancedLivenessProbe=true, which kruise-rs does not have: nobody would probe such Pods" ;;
    *,AllAlpha,*)
      refuse "OpenKruise runs with AllAlpha=true, which means other gates in kruise-rs: switch on by name what you use, in OpenKruise first" ;;
  esac
  injection=$(injection) || refuse "the annotations of OpenKruise's webhook configuration cannot be read (see above)"
  {
    echo "# The feature gates that OpenKruise ran with; the same ones have to be on, and off, from the first start."
    echo "featureGates: '$gates'"
    case "$on" in *,ResourceDistributionGate,*) echo "components: {resourceDistribution: true}" ;; esac
    case "$on" in
      *,EnableExternalCerts,*)
        echo "externalCerts:"
        echo "  enabled: true"
        [ -z "$injection" ] || printf '  annotations:\n%s\n' "$injection"
        ;;
    esac
  } >"$save/values.yaml"
elif [ ! -f "$save/values.yaml" ]; then
  refuse "OpenKruise's manager does not run, and there is no $save/values.yaml of an earlier run, with its feature gates; set SAVE"
fi
$helm template "$release" "$here" --namespace "$system" --values "$save/values.yaml" "$@" >"$save/kruise-rs.yaml" ||
  refuse "Helm cannot render the chart with these flags and values (see above)"
grep -q "^  namespace: \"*$system\"*\$" "$save/kruise-rs.yaml" ||
  refuse "with these values kruise-rs would not be in namespace $system: leave installation.namespace out, and set NAMESPACE if need be"

# ---- save ----

if $manages; then
  echo "saving OpenKruise's installation in $save"
  $kubectl get deployments,daemonsets,services,configmaps,serviceaccounts --namespace "$system" -o yaml >"$save/installed.yaml"
  $kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations -o yaml >"$save/webhooks.yaml"
  $kubectl get customresourcedefinitions -o yaml >"$save/definitions.yaml"
  records -o yaml >"$save/release.yaml"
  echo "$old_release $old_namespace" >"$save/release-name"
  # The way back needs them, and Helm does not know them any more when its record is gone.
  if [ -n "$kept" ]; then
    $helm get values "$old_release" --namespace "$old_namespace" -o yaml >"$save/openkruise.yaml" ||
      refuse "Helm does not give the values of release $old_release (see above); set HELM_DRIVER as for its installation"
  fi
fi

# ---- stop OpenKruise ----

# An API server that cannot convert holds up the garbage collector of the whole cluster.
no_conversion
echo "stopping OpenKruise; until kruise-rs runs nobody replaces a lost Pod of a Kruise workload: drain no node"
$kubectl delete deployment --namespace "$system" "$manager" --ignore-not-found --wait=false
# Its registrations fail closed: without it nobody could create a Pod.
$kubectl delete validatingwebhookconfiguration kruise-validating-webhook-configuration --ignore-not-found
$kubectl delete mutatingwebhookconfiguration kruise-mutating-webhook-configuration --ignore-not-found
$kubectl delete daemonset --namespace "$system" "$daemon" --ignore-not-found --wait=false
# Two daemons on a node would both stop containers.
wait_for_pods
if [ -n "$left" ]; then
  echo "these Pods of OpenKruise are not gone within $timeout; run this again when they are:" >&2
  echo "$left" >&2
  exit 1
fi
# As its manager may have left it.
no_conversion

# ---- forget its release ----

# Without its record nobody can uninstall it by mistake, which would delete the definitions.
$kubectl delete secrets,configmaps --namespace "$old_namespace" -l "owner=helm,name=$old_release" --ignore-not-found
if recorded "$old_release" "$old_namespace"; then
  echo "Helm still has release $old_release in namespace $old_namespace, and uninstalling it would delete the definitions; delete its record and run this again" >&2
  exit 1
fi
# Before kruise-rs starts: its accounts have the same names and would have OpenKruise's rights.
found=$(bindings)
while read -r kind namespace name; do
  case "$namespace" in
    '') ;;
    -) $kubectl delete "$kind" "$name" --ignore-not-found ;;
    *) $kubectl delete "$kind" --namespace "$namespace" "$name" --ignore-not-found ;;
  esac
done <<END
$found
END

# ---- install ----

$helm upgrade --install "$release" "$here" --namespace "$system" --take-ownership --force-conflicts \
  --values "$save/values.yaml" "$@"
for workload in deployment/$manager deployment/kruise-webhook daemonset/$daemon; do
  $kubectl rollout status --namespace "$system" "$workload" --timeout="$timeout"
done
way="OLD_RELEASE=$old_release OLD_NAMESPACE=$old_namespace $here/give-back.sh CHART"
[ "$release" = kruise-rs ] || way="RELEASE=$release $way"
[ "$system" = kruise-system ] || way="NAMESPACE=$system $way"
[ "$helm" = helm ] || way="HELM='$helm' $way"
[ "$kubectl" = kubectl ] || way="KUBECTL='$kubectl' $way"
[ ! -f "$save/openkruise.yaml" ] || way="$way --values $save/openkruise.yaml"
echo "the way back: $way"
echo "done. Bindings of others that give rights to the accounts of kruise-rs are named by: kubectl kruise doctor"
