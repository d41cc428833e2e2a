# Read by take-over.sh and give-back.sh: what both ask before they change anything. They set the variables that are used here.
# shellcheck shell=sh disable=SC2154

refuse() {
  echo "$*" >&2
  echo "nothing was changed" >&2
  exit 1
}

# The flags go to `helm template`, which checks them first, and to `helm upgrade --install`, the last step; kubectl does not get
# them. Both commands must know a flag, and none may name another namespace or cluster, install nothing, or take back what fails.
check_flags() {
  for flag in "$@"; do
    case "$flag" in
      -n* | --namespace* | --kube-* | --kubeconfig* | --dry-run* | -h* | --help*)
        refuse "$flag is refused, because kubectl does not get the flags of this script: set NAMESPACE for another namespace, and for another cluster KUBECONFIG, or KUBECTL and HELM (KUBECTL='kubectl --context C' HELM='helm --kube-context C'); there is no dry run" ;;
      --rollback-on-failure* | --atomic*)
        refuse "$flag is refused: if a step took too long, Helm would uninstall the release, its definitions and with them all workloads" ;;
      -[ags]* | --api-versions* | --show-only* | --generate-name* | --name-template* | --release-name* | --output-dir* | \
        --include-crds* | --is-upgrade* | --skip-tests* | --replace*)
        refuse "$flag is refused: it is no flag of helm upgrade --install" ;;
    esac
  done
  # kubectl does not read them.
  for variable in HELM_KUBECONTEXT HELM_KUBEAPISERVER; do
    eval "value=\${$variable:-}"
    if [ -n "$value" ]; then
      refuse "$variable is set, which only Helm reads: unset it, and set KUBECONFIG, or KUBECTL and HELM, for another cluster"
    fi
  done
}

# Names are put into commands.
check_names() {
  for name in "$@"; do
    case "$name" in
      '' | *[!a-z0-9.-]*) echo "\"$name\" is not the name of a release or namespace" >&2; exit 2 ;;
    esac
  done
}

check_helm() {
  case $($helm version --template '{{.Version}}') in
    v[4-9]* | v[1-9][0-9]*) ;;
    *) refuse "this needs Helm 4 or later" ;;
  esac
}

# What an earlier run has saved is good for its own cluster only.
check_saved() {
  cluster=$($kubectl get namespace kube-system -o jsonpath='{.metadata.uid}') ||
    refuse "the namespace kube-system cannot be read (see above)"
  [ -f "$save/cluster" ] || return 0
  saved=$(cat "$save/cluster")
  [ "$saved" = "$cluster" ] ||
    refuse "$save is of another cluster (its namespace kube-system has the UID $saved, here it is $cluster); set SAVE"
}

make_saved() {
  umask 077
  mkdir -p "$save"
  echo "$cluster" >"$save/cluster"
}

# A restart that is under way would be ended by nobody.
check_requests() {
  requests=$($kubectl get containerrecreaterequests.apps.kruise.io --all-namespaces \
    -o go-template='{{range .items}}{{$phase := ""}}{{with .status}}{{with .phase}}{{$phase = .}}{{end}}{{end}}{{if ne $phase "Completed"}}{{.metadata.namespace}}/{{.metadata.name}} {{end}}{{end}}')
  [ -z "$requests" ] || refuse "these ContainerRecreateRequests have not ended: $requests"
}

# Whether Helm knows a release in a namespace. The script ends when Helm does not say.
recorded() {
  list=$($helm list --namespace "$2" --filter "^$1\$" --short) || exit 1
  [ -n "$list" ]
}

# The command by which Helm forgets a release and deletes none of its objects.
forget() {
  echo "$kubectl -n $2 delete secret,configmap -l owner=helm,name=$1"
}
