// Code generated from manifests/crds by generate. DO NOT EDIT.

package kruise

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// WorkloadRestartStrategy: How the containers of each Pod are restarted; it is handed to every ContainerRecreateRequest.
type WorkloadRestartStrategy struct {
	// What happens when a container cannot be restarted: Fail (the default) ends the request at the first failure, Ignore goes on with the other containers.
	FailurePolicy *string `json:"failurePolicy,omitempty"`
	// true: stop the instance that is there, even if it is not the one that ran when the request was made (for example because it is still starting), once per request.
	ForceRecreate bool `json:"forceRecreate,omitempty"`
	// A new instance counts as restarted once it is ready and has run longer than this many seconds.
	MinStartedSeconds int32 `json:"minStartedSeconds,omitempty"`
	// true: a container is touched only after the one before it has been restarted.
	OrderedRecreate bool `json:"orderedRecreate,omitempty"`
	// Who stops the containers, and how.
	RecreateMethod *string `json:"recreateMethod,omitempty"`
	// Seconds that preStop and the stop may take together; 0 kills at once.
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// If set (0 included), the Pod is made NotReady first through its readiness gate KruisePodReady, and the containers are stopped this many seconds later.
	UnreadyGracePeriodSeconds *int64 `json:"unreadyGracePeriodSeconds,omitempty"`
	// Method PodSpec only.
	VaryImageTag bool `json:"varyImageTag,omitempty"`
}

func (in *WorkloadRestartStrategy) DeepCopyInto(out *WorkloadRestartStrategy) {
	*out = *in
	if in.FailurePolicy != nil {
		out.FailurePolicy = new(string)
		*out.FailurePolicy = *in.FailurePolicy
	}
	if in.RecreateMethod != nil {
		out.RecreateMethod = new(string)
		*out.RecreateMethod = *in.RecreateMethod
	}
	if in.TerminationGracePeriodSeconds != nil {
		out.TerminationGracePeriodSeconds = new(int64)
		*out.TerminationGracePeriodSeconds = *in.TerminationGracePeriodSeconds
	}
	if in.UnreadyGracePeriodSeconds != nil {
		out.UnreadyGracePeriodSeconds = new(int64)
		*out.UnreadyGracePeriodSeconds = *in.UnreadyGracePeriodSeconds
	}
}

// WorkloadRestartTargetRef: The workload, in the namespace of the WorkloadRestart: a Deployment, ReplicaSet, StatefulSet or DaemonSet, a CloneSet, StatefulSet or DaemonSet of apps.kruise.io, or any kind with a scale subresource (for those, Kruise's manager has to be given the right to read it).
type WorkloadRestartTargetRef struct {
	// Group and version, as in the workload's own manifest: apps/v1, for example.
	ApiVersion string `json:"apiVersion"`
	// Kind: Deployment, for example.
	Kind string `json:"kind"`
	// Name.
	Name string `json:"name"`
}

func (in *WorkloadRestartTargetRef) DeepCopyInto(out *WorkloadRestartTargetRef) {
	*out = *in
}

// WorkloadRestartTriggers: A ConfigMap or Secret in the same namespace.
type WorkloadRestartTriggers struct {
	// ConfigMap or Secret.
	Kind string `json:"kind"`
	// Name.
	Name string `json:"name"`
}

func (in *WorkloadRestartTriggers) DeepCopyInto(out *WorkloadRestartTriggers) {
	*out = *in
}

// WorkloadRestartSpec: Which Pods are restarted, and how.
type WorkloadRestartSpec struct {
	// Seconds from the begin (with triggers: of each round) after which no further Pod is begun and the restart has failed.
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`
	// Names of the containers to restart, native sidecars included, in the order in which a Pod's containers are stopped.
	Containers []string `json:"containers,omitempty"`
	// How many Pods may be unavailable at a time, for whatever reason: a number, or a share of the Pods such as "10%", rounded down but at least 1.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Seconds that a restarted Pod has to stay ready before it counts as done and as available.
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// Which Pods come first.
	Order *string `json:"order,omitempty"`
	// How many Pods to leave as they are: a number, or a share of the Pods such as "50%", rounded up.
	Partition *intstr.IntOrString `json:"partition,omitempty"`
	// true: no further Pod is begun.
	Paused bool `json:"paused,omitempty"`
	// Seconds that the restart of one Pod may take before that Pod counts as failed.
	PodDeadlineSeconds *int64 `json:"podDeadlineSeconds,omitempty"`
	// Pods by their labels, instead of a workload.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// How the containers of each Pod are restarted; it is handed to every ContainerRecreateRequest.
	Strategy *WorkloadRestartStrategy `json:"strategy,omitempty"`
	// The workload, in the namespace of the WorkloadRestart: a Deployment, ReplicaSet, StatefulSet or DaemonSet, a CloneSet, StatefulSet or DaemonSet of apps.kruise.io, or any kind with a scale subresource (for those, Kruise's manager has to be given the right to read it).
	TargetRef *WorkloadRestartTargetRef `json:"targetRef,omitempty"`
	// ConfigMaps and Secrets, in the namespace of the WorkloadRestart, each change of whose data begins a round.
	Triggers []WorkloadRestartTriggers `json:"triggers,omitempty"`
	// Seconds after the end when the WorkloadRestart is deleted, with its requests.
	TtlSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

func (in *WorkloadRestartSpec) DeepCopyInto(out *WorkloadRestartSpec) {
	*out = *in
	if in.ActiveDeadlineSeconds != nil {
		out.ActiveDeadlineSeconds = new(int64)
		*out.ActiveDeadlineSeconds = *in.ActiveDeadlineSeconds
	}
	if in.Containers != nil {
		out.Containers = make([]string, len(in.Containers))
		copy(out.Containers, in.Containers)
	}
	if in.MaxUnavailable != nil {
		out.MaxUnavailable = new(intstr.IntOrString)
		*out.MaxUnavailable = *in.MaxUnavailable
	}
	if in.Order != nil {
		out.Order = new(string)
		*out.Order = *in.Order
	}
	if in.Partition != nil {
		out.Partition = new(intstr.IntOrString)
		*out.Partition = *in.Partition
	}
	if in.PodDeadlineSeconds != nil {
		out.PodDeadlineSeconds = new(int64)
		*out.PodDeadlineSeconds = *in.PodDeadlineSeconds
	}
	if in.Selector != nil {
		out.Selector = new(metav1.LabelSelector)
		in.Selector.DeepCopyInto(out.Selector)
	}
	if in.Strategy != nil {
		out.Strategy = new(WorkloadRestartStrategy)
		in.Strategy.DeepCopyInto(out.Strategy)
	}
	if in.TargetRef != nil {
		out.TargetRef = new(WorkloadRestartTargetRef)
		in.TargetRef.DeepCopyInto(out.TargetRef)
	}
	if in.Triggers != nil {
		out.Triggers = make([]WorkloadRestartTriggers, len(in.Triggers))
		copy(out.Triggers, in.Triggers)
		for i1 := range in.Triggers {
			in.Triggers[i1].DeepCopyInto(&out.Triggers[i1])
		}
	}
	if in.TtlSecondsAfterFinished != nil {
		out.TtlSecondsAfterFinished = new(int32)
		*out.TtlSecondsAfterFinished = *in.TtlSecondsAfterFinished
	}
}

// WorkloadRestartStatusTriggers: What the Pods were last restarted for.
type WorkloadRestartStatusTriggers struct {
	// A hash of its data; empty while it does not exist.
	Hash string `json:"hash,omitempty"`
	// ConfigMap or Secret.
	Kind string `json:"kind"`
	// Name.
	Name string `json:"name"`
}

func (in *WorkloadRestartStatusTriggers) DeepCopyInto(out *WorkloadRestartStatusTriggers) {
	*out = *in
}

// WorkloadRestartStatus: Progress of a restart: of the only round, or of the last one.
type WorkloadRestartStatus struct {
	// When the round ended, well or badly.
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Progressing (True while Pods are restarted; its reason says what is waited for), Complete (the round ended well), Failed (it was given up), TriggersReadable (whether the triggers can be watched).
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Pods that could not be restarted.
	Failed int32 `json:"failed"`
	// What it does or waits for.
	Message string `json:"message,omitempty"`
	// The generation of the spec that this status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Pods created after this time need no restart: the creation of the WorkloadRestart, or the change of the trigger.
	PodsCreatedBefore *metav1.Time `json:"podsCreatedBefore,omitempty"`
	// Pods that are restarted or need no restart, and all Pods: 3/10.
	Progress string `json:"progress,omitempty"`
	// Pods that were restarted and are ready again.
	Restarted int32 `json:"restarted"`
	// Pods that are being restarted, or were and are not ready yet.
	Restarting int32 `json:"restarting"`
	// How often it has begun: at most 1 without triggers, else once per change.
	Round int64 `json:"round"`
	// Pods that need no restart: created since the begin, not started yet, or without the containers.
	Skipped int32 `json:"skipped"`
	// When the round began.
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// Pods that there are.
	Total int32 `json:"total"`
	// The triggers as of the last round, or as first seen.
	Triggers []WorkloadRestartStatusTriggers `json:"triggers,omitempty"`
}

func (in *WorkloadRestartStatus) DeepCopyInto(out *WorkloadRestartStatus) {
	*out = *in
	if in.CompletionTime != nil {
		out.CompletionTime = new(metav1.Time)
		in.CompletionTime.DeepCopyInto(out.CompletionTime)
	}
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.PodsCreatedBefore != nil {
		out.PodsCreatedBefore = new(metav1.Time)
		in.PodsCreatedBefore.DeepCopyInto(out.PodsCreatedBefore)
	}
	if in.StartTime != nil {
		out.StartTime = new(metav1.Time)
		in.StartTime.DeepCopyInto(out.StartTime)
	}
	if in.Triggers != nil {
		out.Triggers = make([]WorkloadRestartStatusTriggers, len(in.Triggers))
		copy(out.Triggers, in.Triggers)
		for i1 := range in.Triggers {
			in.Triggers[i1].DeepCopyInto(&out.Triggers[i1])
		}
	}
}
