#!/bin/sh
# Removes kruise-rs with nothing but kubectl: requests (and restarts, which make them) and their finalizers first, then what manifests/ installed.
# Never deletes a workload or a Pod, and keeps the CustomResourceDefinitions unless told otherwise.
#
#   manifests/uninstall.sh [--crds]    environment: KUBECTL (default kubectl), TIMEOUT (default 60s),
#                                                   NAMESPACE of the installation (default kruise-system)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kubectl=${KUBECTL:-kubectl}
timeout=${TIMEOUT:-60s}
system=${NAMESPACE:-kruise-system}
crd=containerrecreaterequests.apps.kruise.io
restarts=workloadrestarts.kruise.rs
workloads="clonesets.apps.kruise.io statefulsets.apps.kruise.io daemonsets.apps.kruise.io uniteddeployments.apps.kruise.io"
jobs="broadcastjobs.apps.kruise.io advancedcronjobs.apps.kruise.io"
distributions=resourcedistributions.apps.kruise.io
markers=podprobemarkers.apps.kruise.io
image_jobs="imagepulljobs.apps.kruise.io imagelistpulljobs.apps.kruise.io"
ephemeral_jobs=ephemeraljobs.apps.kruise.io
finalizer=crr.apps.kruise.io/unready-acquired
crds=false
case "${1:-}" in
  '') ;;
  --crds) crds=true ;;
  *) echo "usage: $0 [--crds]" >&2; exit 2 ;;
esac

case "$system" in
  '' | *[!a-z0-9-]*) echo "NAMESPACE is \"$system\"; want the name of a namespace" >&2; exit 2 ;;
esac

# Everything below is of the whole cluster: with the wrong namespace it would leave an installation without its policies,
# or take away what another program of the same names works with. Where nothing is installed there is nothing to spare, so
# this can be run again.
deployments=$($kubectl get deployments --all-namespaces \
  -o go-template='{{range .items}}{{if or (eq .metadata.name "kruise-controller-manager") (eq .metadata.name "kruise-webhook")}}{{.metadata.namespace}} {{.metadata.name}} {{with .metadata.labels}}{{index . "app.kubernetes.io/name"}}{{end}}{{"\n"}}{{end}}{{end}}')
echo "$deployments" | while read -r namespace name program; do
  [ -n "$name" ] || continue
  if [ "$program" = kruise-rs ] && [ "$namespace" != "$system" ]; then
    echo "kruise-rs is installed in namespace $namespace (Deployment $name), not in $system; run this with NAMESPACE=$namespace" >&2
    exit 1
  fi
  if [ "$program" = kruise-rs ]; then
    continue
  fi
  if [ "$name" = kruise-controller-manager ] || [ "$namespace" = "$system" ]; then
    echo "Deployment $name in namespace $namespace is not of kruise-rs (label app.kubernetes.io/name); nothing was changed" >&2
    exit 1
  fi
done

# Whether a definition is installed. The script ends when the API server does not say.
installed() {
  definition=$($kubectl get crd "$1" --ignore-not-found -o name) || exit 1
  [ -n "$definition" ]
}

# What others delete meanwhile needs no patch.
patch_unless_gone() {
  if said=$($kubectl patch "$@" 2>&1); then
    echo "$said"
    return
  fi
  case "$said" in
    *'(NotFound)'*) ;;
    *) echo "$said" >&2; return 1 ;;
  esac
}

# The manifests, for the namespace of the installation.
in_system() {
  sed -E 's/^( *(name|namespace): )kruise-system$/\1'"$system"'/'
}

# The namespace stays: what others keep there is theirs, such as the revisions of SidecarSets and the ConfigMap
# kruise-configuration of OpenKruise.
without_namespace() {
  awk 'function flush() { if (!skip && text != "") printf "---\n%s", text; text = ""; skip = 0 }
    /^---$/ { flush(); next }
    { text = text $0 "\n"; if ($0 == "kind: Namespace") skip = 1 }
    END { flush() }'
}

# "namespace name index" of every object of a kind that holds a finalizer of ours. Finalizers of others are left alone.
held() {
  $kubectl get "$1" --all-namespaces -o go-template='{{range .items}}{{$m := .metadata}}{{range $i, $f := .metadata.finalizers}}{{if eq $f "'"$2"'"}}{{$m.namespace}} {{$m.name}} {{$i}}{{"\n"}}{{end}}{{end}}{{end}}'
}

# Lists are read before they are gone through, here and below: a pipe would hide that the API server did not give one.
release() {
  objects=$(held "$1" "$2") || exit 1
  while read -r namespace name index; do
    [ -n "$name" ] || continue
    echo "releasing ${1%%.*} $namespace/$name"
    patch_unless_gone "$1" --namespace "$namespace" "$name" --type=json --patch \
      '[{"op":"test","path":"/metadata/finalizers/'"$index"'","value":"'"$2"'"},{"op":"remove","path":"/metadata/finalizers/'"$index"'"}]'
  done <<END
$objects
END
}

# "namespace name condition" of every Pod that Kruise keeps, or never let, out of its Services.
held_pods() {
  $kubectl get pods --all-namespaces -o go-template='{{range .items}}{{$m := .metadata}}{{$s := .status}}{{range .spec.readinessGates}}{{$gate := .conditionType}}{{if or (eq $gate "KruisePodReady") (eq $gate "InPlaceUpdateReady")}}{{$true := false}}{{range $s.conditions}}{{if and (eq .type $gate) (eq .status "True")}}{{$true = true}}{{end}}{{end}}{{if not $true}}{{$m.namespace}} {{$m.name}} {{$gate}}{{"\n"}}{{end}}{{end}}{{end}}{{end}}'
}

# With a definition its objects are deleted, with a workload or a job its Pods, and with a ResourceDistribution its copies.
if $crds; then
  refused=false
  for kind in $workloads $jobs $distributions; do
    installed "$kind" || continue
    what='all their Pods'
    case "$kind" in "$distributions") what='all their copies of Secrets and ConfigMaps' ;; esac
    kept=$($kubectl get "$kind" --all-namespaces --no-headers -o custom-columns=:.metadata.namespace,:.metadata.name)
    if [ -n "$kept" ]; then
      echo "--crds would delete these $kind with $what; delete them yourself, or leave --crds out:" >&2
      echo "$kept" >&2
      refused=true
    fi
  done
  if $refused; then
    exit 1
  fi
fi

# What would make further requests goes first.
if installed "$restarts"; then
  echo "deleting WorkloadRestarts"
  $kubectl delete "$restarts" --all --all-namespaces --wait --timeout="$timeout"
fi

# A running manager makes Pods ready again and lets finalizers go.
if installed "$crd"; then
  echo "deleting ContainerRecreateRequests"
  if ! $kubectl delete "$crd" --all --all-namespaces --wait --timeout="$timeout"; then
    echo "the manager did not release all requests in $timeout; they are released below" >&2
  fi
fi

# First the registration: admission must not wait for a webhook that is going away.
$kubectl delete mutatingwebhookconfiguration kruise-mutating-webhook-configuration --ignore-not-found
$kubectl delete validatingwebhookconfiguration kruise-validating-webhook-configuration --ignore-not-found
policies=$($kubectl get validatingadmissionpolicy --selector app.kubernetes.io/name=kruise-rs \
  -o go-template='{{range .items}} {{.metadata.name}} {{end}}')
echo "deleting what manifests/ installed"
# Until the Pods of the roles are gone too.
$kubectl kustomize "$here/base" | without_namespace | in_system |
  $kubectl delete -f - --cascade=foreground --ignore-not-found --wait --timeout="$timeout" || left=true
for file in "$here"/components/*/*.yaml; do
  case "$file" in */kustomization.yaml) continue ;; esac
  in_system <"$file" | $kubectl delete -f - --ignore-not-found --wait --timeout="$timeout" || left=true
done

# From here on nobody of ours is there any more. Bindings of our policies that the webhook or an administrator has made go
# with them, and policies that another release has brought.
for policy in $policies; do
  $kubectl delete validatingadmissionpolicy "$policy" --ignore-not-found
done
bindings=$($kubectl get validatingadmissionpolicybinding \
  -o go-template='{{range .items}}{{.metadata.name}} {{.spec.policyName}}{{"\n"}}{{end}}')
while read -r binding policy; do
  [ -n "$binding" ] || continue
  case " $policies kruise-deletion-protection " in
    *" $policy "*) $kubectl delete validatingadmissionpolicybinding "$binding" --ignore-not-found ;;
  esac
done <<END
$bindings
END
if installed "$crd"; then
  $kubectl delete "$crd" --all --all-namespaces --wait=false
  release "$crd" "$finalizer"
fi
# They stay, and can be deleted; what they wrote on Pods stays too.
if installed "$markers"; then
  release "$markers" kruise.io/node-pod-probe-cleanup
fi
# OpenKruise has written these, and kruise-rs releases them while it runs.
for kind in $image_jobs; do
  if installed "$kind"; then
    release "$kind" apps.kruise.io/deletion-protection
  fi
done
if installed "$ephemeral_jobs"; then
  release "$ephemeral_jobs" apps.kruise.io/ephemeralcontainers-cleanup
fi
now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
pods=$(held_pods)
while read -r namespace name gate; do
  [ -n "$name" ] || continue
  echo "making Pod $namespace/$name ready"
  # The message of KruisePodReady lists who holds the Pod.
  message=
  [ "$gate" != KruisePodReady ] || message='[]'
  patch_unless_gone pod --namespace "$namespace" "$name" --subresource=status --type=strategic --patch \
    '{"status":{"conditions":[{"type":"'"$gate"'","status":"True","message":"'"$message"'","lastTransitionTime":"'"$now"'"}]}}'
done <<END
$pods
END

if $crds; then
  echo "deleting CustomResourceDefinitions and all objects of their kinds"
  $kubectl delete -k "$here/crds" --ignore-not-found --wait --timeout="$timeout" || left=true
fi
echo "namespace $system is kept; if nothing of others is in it: kubectl delete namespace $system"
if [ "${left:-false}" = true ]; then
  echo "some objects were not gone within $timeout; run this again to see them" >&2
  exit 1
fi
