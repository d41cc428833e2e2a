// Code generated from manifests/crds by generate. DO NOT EDIT.

package apps

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// AdvancedCronJobTemplate: The job: exactly one of its fields.
type AdvancedCronJobTemplate struct {
	// A BroadcastJob: metadata (labels, annotations) and spec.
	BroadcastJobTemplate *BroadcastJobTemplate `json:"broadcastJobTemplate,omitempty"`
	// An ImageListPullJob: metadata (labels, annotations) and spec.
	ImageListPullJobTemplate *ImageListPullJobTemplate `json:"imageListPullJobTemplate,omitempty"`
	// A Job of batch/v1: metadata (labels, annotations) and spec.
	JobTemplate *batchv1.JobTemplateSpec `json:"jobTemplate,omitempty"`
}

func (in *AdvancedCronJobTemplate) DeepCopyInto(out *AdvancedCronJobTemplate) {
	*out = *in
	if in.BroadcastJobTemplate != nil {
		out.BroadcastJobTemplate = new(BroadcastJobTemplate)
		in.BroadcastJobTemplate.DeepCopyInto(out.BroadcastJobTemplate)
	}
	if in.ImageListPullJobTemplate != nil {
		out.ImageListPullJobTemplate = new(ImageListPullJobTemplate)
		in.ImageListPullJobTemplate.DeepCopyInto(out.ImageListPullJobTemplate)
	}
	if in.JobTemplate != nil {
		out.JobTemplate = new(batchv1.JobTemplateSpec)
		in.JobTemplate.DeepCopyInto(out.JobTemplate)
	}
}

// AdvancedCronJobSpec: When which job is made.
type AdvancedCronJobSpec struct {
	// What happens while an earlier job runs.
	ConcurrencyPolicy string `json:"concurrencyPolicy,omitempty"`
	// How many jobs that have failed are kept.
	FailedJobsHistoryLimit *int32 `json:"failedJobsHistoryLimit,omitempty"`
	// true: no job is made.
	Paused *bool `json:"paused,omitempty"`
	// When jobs are made: five fields (minute, hour, day of the month, month, day of the week) as in cron, @yearly, @monthly, @weekly, @daily, @hourly, or @every and a duration such as 1h30m.
	Schedule string `json:"schedule"`
	// How many jobs that have succeeded are kept.
	SuccessfulJobsHistoryLimit *int32 `json:"successfulJobsHistoryLimit,omitempty"`
	// The job: exactly one of its fields.
	Template AdvancedCronJobTemplate `json:"template"`
	// The time zone of the schedule, by its name in the IANA database, such as Europe/Berlin.
	TimeZone *string `json:"timeZone,omitempty"`
}

func (in *AdvancedCronJobSpec) DeepCopyInto(out *AdvancedCronJobSpec) {
	*out = *in
	if in.FailedJobsHistoryLimit != nil {
		out.FailedJobsHistoryLimit = new(int32)
		*out.FailedJobsHistoryLimit = *in.FailedJobsHistoryLimit
	}
	if in.Paused != nil {
		out.Paused = new(bool)
		*out.Paused = *in.Paused
	}
	if in.SuccessfulJobsHistoryLimit != nil {
		out.SuccessfulJobsHistoryLimit = new(int32)
		*out.SuccessfulJobsHistoryLimit = *in.SuccessfulJobsHistoryLimit
	}
	in.Template.DeepCopyInto(&out.Template)
	if in.TimeZone != nil {
		out.TimeZone = new(string)
		*out.TimeZone = *in.TimeZone
	}
}

// AdvancedCronJobStatus: What has been made, and what comes.
type AdvancedCronJobStatus struct {
	// Jobs that have not ended.
	Active []corev1.ObjectReference `json:"active,omitempty"`
	// Ready, Reconciling and Stalled, as kstatus reads them.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The time for which the last job was made.
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// When the last job that has succeeded ended.
	LastSuccessfulTime *metav1.Time `json:"lastSuccessfulTime,omitempty"`
	// When the next job is due.
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`
	// The generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Kind of the jobs: Job, BroadcastJob or ImageListPullJob.
	Type string `json:"type,omitempty"`
}

func (in *AdvancedCronJobStatus) DeepCopyInto(out *AdvancedCronJobStatus) {
	*out = *in
	if in.Active != nil {
		out.Active = make([]corev1.ObjectReference, len(in.Active))
		copy(out.Active, in.Active)
		for i1 := range in.Active {
			in.Active[i1].DeepCopyInto(&out.Active[i1])
		}
	}
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.LastScheduleTime != nil {
		out.LastScheduleTime = new(metav1.Time)
		in.LastScheduleTime.DeepCopyInto(out.LastScheduleTime)
	}
	if in.LastSuccessfulTime != nil {
		out.LastSuccessfulTime = new(metav1.Time)
		in.LastSuccessfulTime.DeepCopyInto(out.LastSuccessfulTime)
	}
	if in.NextScheduleTime != nil {
		out.NextScheduleTime = new(metav1.Time)
		in.NextScheduleTime.DeepCopyInto(out.NextScheduleTime)
	}
}

// BroadcastJobCompletionPolicy: When the job is over.
type BroadcastJobCompletionPolicy struct {
	// Seconds after its begin when a job that is not over has failed, and its Pods are deleted.
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`
	// Seconds after its end when the job is deleted with its Pods.
	TtlSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// Always (the default): the job is over when the Pod of each node has ended.
	Type string `json:"type,omitempty"`
}

func (in *BroadcastJobCompletionPolicy) DeepCopyInto(out *BroadcastJobCompletionPolicy) {
	*out = *in
	if in.ActiveDeadlineSeconds != nil {
		out.ActiveDeadlineSeconds = new(int64)
		*out.ActiveDeadlineSeconds = *in.ActiveDeadlineSeconds
	}
	if in.TtlSecondsAfterFinished != nil {
		out.TtlSecondsAfterFinished = new(int32)
		*out.TtlSecondsAfterFinished = *in.TtlSecondsAfterFinished
	}
}

// BroadcastJobSpec: What runs on which nodes, and when it is over.
type BroadcastJobSpec struct {
	// When the job is over.
	CompletionPolicy BroadcastJobCompletionPolicy `json:"completionPolicy,omitempty"`
	// How many Pods run at a time: a number, or a percentage of the nodes that are to have a Pod, rounded up.
	Parallelism *intstr.IntOrString `json:"parallelism,omitempty"`
	// true: no Pod is made or deleted, and the job does not end.
	Paused *bool `json:"paused,omitempty"`
	// The Pod.
	Template corev1.PodTemplateSpec `json:"template"`
}

func (in *BroadcastJobSpec) DeepCopyInto(out *BroadcastJobSpec) {
	*out = *in
	in.CompletionPolicy.DeepCopyInto(&out.CompletionPolicy)
	if in.Parallelism != nil {
		out.Parallelism = new(intstr.IntOrString)
		*out.Parallelism = *in.Parallelism
	}
	if in.Paused != nil {
		out.Paused = new(bool)
		*out.Paused = *in.Paused
	}
	in.Template.DeepCopyInto(&out.Template)
}

// BroadcastJobStatusConditions: A condition of a job.
type BroadcastJobStatusConditions struct {
	// When it was last looked at.
	LastProbeTime *metav1.Time `json:"lastProbeTime,omitempty"`
	// When the status last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// In words.
	Message string `json:"message,omitempty"`
	// One word.
	Reason string `json:"reason,omitempty"`
	// True, False or Unknown.
	Status string `json:"status,omitempty"`
	// Complete, Failed, Ready, Reconciling or Stalled.
	Type string `json:"type,omitempty"`
}

func (in *BroadcastJobStatusConditions) DeepCopyInto(out *BroadcastJobStatusConditions) {
	*out = *in
	if in.LastProbeTime != nil {
		out.LastProbeTime = new(metav1.Time)
		in.LastProbeTime.DeepCopyInto(out.LastProbeTime)
	}
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
}

// BroadcastJobStatus: How far a job is.
type BroadcastJobStatus struct {
	// Pods that have not ended and are not being deleted.
	Active int32 `json:"active"`
	// When the job was over.
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Complete or Failed, when the job is over; Ready, Reconciling and Stalled, as kstatus reads them.
	Conditions []BroadcastJobStatusConditions `json:"conditions,omitempty"`
	// Nodes that are to have a Pod, and those that have one.
	Desired int32 `json:"desired"`
	// Pods that have failed.
	Failed int32 `json:"failed"`
	// The generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// running, paused, completed or failed.
	Phase string `json:"phase,omitempty"`
	// When the job began.
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// Pods that have succeeded.
	Succeeded int32 `json:"succeeded"`
}

func (in *BroadcastJobStatus) DeepCopyInto(out *BroadcastJobStatus) {
	*out = *in
	if in.CompletionTime != nil {
		out.CompletionTime = new(metav1.Time)
		in.CompletionTime.DeepCopyInto(out.CompletionTime)
	}
	if in.Conditions != nil {
		out.Conditions = make([]BroadcastJobStatusConditions, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.StartTime != nil {
		out.StartTime = new(metav1.Time)
		in.StartTime.DeepCopyInto(out.StartTime)
	}
}

// CloneSetLifecycleInPlaceUpdate: While any part of it is on a Pod, the Pod is not updated in place; after the update all of it has to be put back before the Pod counts as available.
type CloneSetLifecycleInPlaceUpdate struct {
	// Finalizers whose presence means "hooked".
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// Labels with the value that means "hooked".
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// Whether the Pod is made NotReady while it waits.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

func (in *CloneSetLifecycleInPlaceUpdate) DeepCopyInto(out *CloneSetLifecycleInPlaceUpdate) {
	*out = *in
	if in.FinalizersHandler != nil {
		out.FinalizersHandler = make([]string, len(in.FinalizersHandler))
		copy(out.FinalizersHandler, in.FinalizersHandler)
	}
	if in.LabelsHandler != nil {
		out.LabelsHandler = make(map[string]string, len(in.LabelsHandler))
		for key, value1 := range in.LabelsHandler {
			out.LabelsHandler[key] = value1
		}
	}
}

// CloneSetLifecyclePreDelete: While any part of it is on a Pod, the Pod is not deleted.
type CloneSetLifecyclePreDelete struct {
	// Finalizers whose presence means "hooked".
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// Labels with the value that means "hooked".
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// Whether the Pod is made NotReady while it waits.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

func (in *CloneSetLifecyclePreDelete) DeepCopyInto(out *CloneSetLifecyclePreDelete) {
	*out = *in
	if in.FinalizersHandler != nil {
		out.FinalizersHandler = make([]string, len(in.FinalizersHandler))
		copy(out.FinalizersHandler, in.FinalizersHandler)
	}
	if in.LabelsHandler != nil {
		out.LabelsHandler = make(map[string]string, len(in.LabelsHandler))
		for key, value1 := range in.LabelsHandler {
			out.LabelsHandler[key] = value1
		}
	}
}

// CloneSetLifecyclePreNormal: A new Pod counts as available only when all of it is on the Pod.
type CloneSetLifecyclePreNormal struct {
	// Finalizers whose presence means "hooked".
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// Labels with the value that means "hooked".
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// Whether the Pod is made NotReady while it waits.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

func (in *CloneSetLifecyclePreNormal) DeepCopyInto(out *CloneSetLifecyclePreNormal) {
	*out = *in
	if in.FinalizersHandler != nil {
		out.FinalizersHandler = make([]string, len(in.FinalizersHandler))
		copy(out.FinalizersHandler, in.FinalizersHandler)
	}
	if in.LabelsHandler != nil {
		out.LabelsHandler = make(map[string]string, len(in.LabelsHandler))
		for key, value1 := range in.LabelsHandler {
			out.LabelsHandler[key] = value1
		}
	}
}

// CloneSetLifecycle: Hooks with which another controller holds up the deletion and the update of a Pod.
type CloneSetLifecycle struct {
	// While any part of it is on a Pod, the Pod is not updated in place; after the update all of it has to be put back before the Pod counts as available.
	InPlaceUpdate *CloneSetLifecycleInPlaceUpdate `json:"inPlaceUpdate,omitempty"`
	// While any part of it is on a Pod, the Pod is not deleted.
	PreDelete *CloneSetLifecyclePreDelete `json:"preDelete,omitempty"`
	// A new Pod counts as available only when all of it is on the Pod.
	PreNormal *CloneSetLifecyclePreNormal `json:"preNormal,omitempty"`
}

func (in *CloneSetLifecycle) DeepCopyInto(out *CloneSetLifecycle) {
	*out = *in
	if in.InPlaceUpdate != nil {
		out.InPlaceUpdate = new(CloneSetLifecycleInPlaceUpdate)
		in.InPlaceUpdate.DeepCopyInto(out.InPlaceUpdate)
	}
	if in.PreDelete != nil {
		out.PreDelete = new(CloneSetLifecyclePreDelete)
		in.PreDelete.DeepCopyInto(out.PreDelete)
	}
	if in.PreNormal != nil {
		out.PreNormal = new(CloneSetLifecyclePreNormal)
		in.PreNormal.DeepCopyInto(out.PreNormal)
	}
}

// CloneSetScaleStrategy: How the number of Pods is changed.
type CloneSetScaleStrategy struct {
	// true: a claim that a lost Pod leaves behind is never given to a new Pod.
	DisablePVCReuse bool `json:"disablePVCReuse,omitempty"`
	// How many Pods may be unavailable while Pods are added: a number or a percentage, rounded up.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Names of Pods that are deleted first.
	PodsToDelete []string `json:"podsToDelete,omitempty"`
}

func (in *CloneSetScaleStrategy) DeepCopyInto(out *CloneSetScaleStrategy) {
	*out = *in
	if in.MaxUnavailable != nil {
		out.MaxUnavailable = new(intstr.IntOrString)
		*out.MaxUnavailable = *in.MaxUnavailable
	}
	if in.PodsToDelete != nil {
		out.PodsToDelete = make([]string, len(in.PodsToDelete))
		copy(out.PodsToDelete, in.PodsToDelete)
	}
}

// CloneSetUpdateStrategyInPlaceUpdateStrategy: How an update in place is done.
type CloneSetUpdateStrategyInPlaceUpdateStrategy struct {
	// Seconds between making the Pod NotReady and changing it.
	GracePeriodSeconds int32 `json:"gracePeriodSeconds,omitempty"`
}

func (in *CloneSetUpdateStrategyInPlaceUpdateStrategy) DeepCopyInto(out *CloneSetUpdateStrategyInPlaceUpdateStrategy) {
	*out = *in
}

// CloneSetUpdateStrategyPriorityStrategyOrderPriority: A label whose value gives the order.
type CloneSetUpdateStrategyPriorityStrategyOrderPriority struct {
	// Its key.
	OrderedKey string `json:"orderedKey"`
}

func (in *CloneSetUpdateStrategyPriorityStrategyOrderPriority) DeepCopyInto(out *CloneSetUpdateStrategyPriorityStrategyOrderPriority) {
	*out = *in
}

// CloneSetUpdateStrategyPriorityStrategyWeightPriority: A weight for the Pods that a selector matches.
type CloneSetUpdateStrategyPriorityStrategyWeightPriority struct {
	// The Pods.
	MatchSelector metav1.LabelSelector `json:"matchSelector"`
	// From 0 to 100.
	Weight int32 `json:"weight"`
}

func (in *CloneSetUpdateStrategyPriorityStrategyWeightPriority) DeepCopyInto(out *CloneSetUpdateStrategyPriorityStrategyWeightPriority) {
	*out = *in
	in.MatchSelector.DeepCopyInto(&out.MatchSelector)
}

// CloneSetUpdateStrategyPriorityStrategy: Which Pods are updated first.
type CloneSetUpdateStrategyPriorityStrategy struct {
	// By the number at the end of a label's value, larger first.
	OrderPriority []CloneSetUpdateStrategyPriorityStrategyOrderPriority `json:"orderPriority,omitempty"`
	// By the sum of the weights of the selectors that match, larger first.
	WeightPriority []CloneSetUpdateStrategyPriorityStrategyWeightPriority `json:"weightPriority,omitempty"`
}

func (in *CloneSetUpdateStrategyPriorityStrategy) DeepCopyInto(out *CloneSetUpdateStrategyPriorityStrategy) {
	*out = *in
	if in.OrderPriority != nil {
		out.OrderPriority = make([]CloneSetUpdateStrategyPriorityStrategyOrderPriority, len(in.OrderPriority))
		copy(out.OrderPriority, in.OrderPriority)
		for i1 := range in.OrderPriority {
			in.OrderPriority[i1].DeepCopyInto(&out.OrderPriority[i1])
		}
	}
	if in.WeightPriority != nil {
		out.WeightPriority = make([]CloneSetUpdateStrategyPriorityStrategyWeightPriority, len(in.WeightPriority))
		copy(out.WeightPriority, in.WeightPriority)
		for i1 := range in.WeightPriority {
			in.WeightPriority[i1].DeepCopyInto(&out.WeightPriority[i1])
		}
	}
}

// CloneSetUpdateStrategyScatterStrategy: Pods to spread over the whole roll-out.
type CloneSetUpdateStrategyScatterStrategy struct {
	// Key of a label.
	Key string `json:"key"`
	// Its value.
	Value string `json:"value"`
}

func (in *CloneSetUpdateStrategyScatterStrategy) DeepCopyInto(out *CloneSetUpdateStrategyScatterStrategy) {
	*out = *in
}

// CloneSetUpdateStrategy: How Pods get to a new revision.
type CloneSetUpdateStrategy struct {
	// How an update in place is done.
	InPlaceUpdateStrategy *CloneSetUpdateStrategyInPlaceUpdateStrategy `json:"inPlaceUpdateStrategy,omitempty"`
	// How many Pods there may be beyond replicas: a number or a percentage, rounded up.
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// How many Pods may be unavailable while others are updated: a number or a percentage, rounded up without maxSurge and down with it.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// How many Pods are kept on old revisions: a number, or a percentage rounded up.
	Partition *intstr.IntOrString `json:"partition,omitempty"`
	// true: no Pod is updated.
	Paused bool `json:"paused,omitempty"`
	// Which Pods are updated first.
	PriorityStrategy *CloneSetUpdateStrategyPriorityStrategy `json:"priorityStrategy,omitempty"`
	// Labels whose Pods are spread over the whole roll-out.
	ScatterStrategy []CloneSetUpdateStrategyScatterStrategy `json:"scatterStrategy,omitempty"`
	// ReCreate (the default), InPlaceIfPossible, InPlaceOnly or OnDelete.
	Type string `json:"type,omitempty"`
}

func (in *CloneSetUpdateStrategy) DeepCopyInto(out *CloneSetUpdateStrategy) {
	*out = *in
	if in.InPlaceUpdateStrategy != nil {
		out.InPlaceUpdateStrategy = new(CloneSetUpdateStrategyInPlaceUpdateStrategy)
		in.InPlaceUpdateStrategy.DeepCopyInto(out.InPlaceUpdateStrategy)
	}
	if in.MaxSurge != nil {
		out.MaxSurge = new(intstr.IntOrString)
		*out.MaxSurge = *in.MaxSurge
	}
	if in.MaxUnavailable != nil {
		out.MaxUnavailable = new(intstr.IntOrString)
		*out.MaxUnavailable = *in.MaxUnavailable
	}
	if in.Partition != nil {
		out.Partition = new(intstr.IntOrString)
		*out.Partition = *in.Partition
	}
	if in.PriorityStrategy != nil {
		out.PriorityStrategy = new(CloneSetUpdateStrategyPriorityStrategy)
		in.PriorityStrategy.DeepCopyInto(out.PriorityStrategy)
	}
	if in.ScatterStrategy != nil {
		out.ScatterStrategy = make([]CloneSetUpdateStrategyScatterStrategy, len(in.ScatterStrategy))
		copy(out.ScatterStrategy, in.ScatterStrategy)
		for i1 := range in.ScatterStrategy {
			in.ScatterStrategy[i1].DeepCopyInto(&out.ScatterStrategy[i1])
		}
	}
}

// CloneSetSpec: What a CloneSet should be.
type CloneSetSpec struct {
	// Hooks with which another controller holds up the deletion and the update of a Pod.
	Lifecycle *CloneSetLifecycle `json:"lifecycle,omitempty"`
	// Seconds that a Pod has to be ready before it counts as available.
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// The desired number of Pods.
	Replicas *int32 `json:"replicas,omitempty"`
	// How many revisions that no Pod has are kept.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// How the number of Pods is changed.
	ScaleStrategy CloneSetScaleStrategy `json:"scaleStrategy,omitempty"`
	// The Pods that belong to the CloneSet, by their labels.
	Selector metav1.LabelSelector `json:"selector"`
	// The Pod that is made.
	Template corev1.PodTemplateSpec `json:"template"`
	// How Pods get to a new revision.
	UpdateStrategy CloneSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// Claims that every Pod gets a copy of.
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates,omitempty"`
}

func (in *CloneSetSpec) DeepCopyInto(out *CloneSetSpec) {
	*out = *in
	if in.Lifecycle != nil {
		out.Lifecycle = new(CloneSetLifecycle)
		in.Lifecycle.DeepCopyInto(out.Lifecycle)
	}
	if in.Replicas != nil {
		out.Replicas = new(int32)
		*out.Replicas = *in.Replicas
	}
	if in.RevisionHistoryLimit != nil {
		out.RevisionHistoryLimit = new(int32)
		*out.RevisionHistoryLimit = *in.RevisionHistoryLimit
	}
	in.ScaleStrategy.DeepCopyInto(&out.ScaleStrategy)
	in.Selector.DeepCopyInto(&out.Selector)
	in.Template.DeepCopyInto(&out.Template)
	in.UpdateStrategy.DeepCopyInto(&out.UpdateStrategy)
	if in.VolumeClaimTemplates != nil {
		out.VolumeClaimTemplates = make([]corev1.PersistentVolumeClaim, len(in.VolumeClaimTemplates))
		copy(out.VolumeClaimTemplates, in.VolumeClaimTemplates)
		for i1 := range in.VolumeClaimTemplates {
			in.VolumeClaimTemplates[i1].DeepCopyInto(&out.VolumeClaimTemplates[i1])
		}
	}
}

// CloneSetStatusConditions: One observation.
type CloneSetStatusConditions struct {
	// When the status last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// Progressing only: when the roll-out last made progress or the reason changed.
	LastUpdateTime *metav1.Time `json:"lastUpdateTime,omitempty"`
	// In words.
	Message string `json:"message,omitempty"`
	// One word.
	Reason string `json:"reason,omitempty"`
	// True, False or Unknown.
	Status string `json:"status,omitempty"`
	// Ready, Reconciling, Stalled, FailedScale, FailedUpdate or Progressing.
	Type string `json:"type,omitempty"`
}

func (in *CloneSetStatusConditions) DeepCopyInto(out *CloneSetStatusConditions) {
	*out = *in
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
	if in.LastUpdateTime != nil {
		out.LastUpdateTime = new(metav1.Time)
		in.LastUpdateTime.DeepCopyInto(out.LastUpdateTime)
	}
}

// CloneSetStatus: What a CloneSet is.
type CloneSetStatus struct {
	// Pods that have been ready for minReadySeconds and are in service.
	AvailableReplicas int32 `json:"availableReplicas"`
	// How often the name of a new revision was taken.
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// Ready, Reconciling and Stalled, from which tools read how far it is (kstatus); FailedScale, FailedUpdate and Progressing.
	Conditions []CloneSetStatusConditions `json:"conditions,omitempty"`
	// The revision that Pods were on before.
	CurrentRevision string `json:"currentRevision,omitempty"`
	// Pods that are to be on the update revision: replicas without the partition.
	ExpectedUpdatedReplicas int32 `json:"expectedUpdatedReplicas"`
	// The selector as text, for the scale subresource.
	LabelSelector string `json:"labelSelector,omitempty"`
	// The generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Pods that are ready.
	ReadyReplicas int32 `json:"readyReplicas"`
	// Pods that there are.
	Replicas int32 `json:"replicas"`
	// Pods that are being deleted.
	TerminatingReplicas int32 `json:"terminatingReplicas"`
	// The revision that Pods are updated to.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// Of them, available.
	UpdatedAvailableReplicas int32 `json:"updatedAvailableReplicas"`
	// Of them, ready.
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas"`
	// Pods on the update revision.
	UpdatedReplicas int32 `json:"updatedReplicas"`
}

func (in *CloneSetStatus) DeepCopyInto(out *CloneSetStatus) {
	*out = *in
	if in.CollisionCount != nil {
		out.CollisionCount = new(int32)
		*out.CollisionCount = *in.CollisionCount
	}
	if in.Conditions != nil {
		out.Conditions = make([]CloneSetStatusConditions, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
}

// ContainerRecreateRequestContainersStatusContext: Read-only, set at admission: the instance that is to be replaced.
type ContainerRecreateRequestContainersStatusContext struct {
	// Id in the form `<runtime>://<id>`, as the Pod's status shows it.
	ContainerID string `json:"containerID"`
	// Method PodSpec only: how the image was spelled when the request was admitted.
	Image string `json:"image,omitempty"`
	// Restart count of that instance.
	RestartCount int32 `json:"restartCount"`
}

func (in *ContainerRecreateRequestContainersStatusContext) DeepCopyInto(out *ContainerRecreateRequestContainersStatusContext) {
	*out = *in
}

// ContainerRecreateRequestContainers: One container to restart.
type ContainerRecreateRequestContainers struct {
	// Name of a container in spec.containers of the Pod, or of a native sidecar (an init container with restartPolicy Always).
	Name string `json:"name"`
	// Read-only, set at admission when preStop is an HTTP request: the container's ports, to look up a named port.
	Ports []corev1.ContainerPort `json:"ports,omitempty"`
	// Read-only, set at admission: the container's preStop hook, which is run before the stop.
	PreStop *corev1.LifecycleHandler `json:"preStop,omitempty"`
	// Read-only, set at admission: the instance that is to be replaced.
	StatusContext *ContainerRecreateRequestContainersStatusContext `json:"statusContext,omitempty"`
}

func (in *ContainerRecreateRequestContainers) DeepCopyInto(out *ContainerRecreateRequestContainers) {
	*out = *in
	if in.Ports != nil {
		out.Ports = make([]corev1.ContainerPort, len(in.Ports))
		copy(out.Ports, in.Ports)
		for i1 := range in.Ports {
			in.Ports[i1].DeepCopyInto(&out.Ports[i1])
		}
	}
	if in.PreStop != nil {
		out.PreStop = new(corev1.LifecycleHandler)
		in.PreStop.DeepCopyInto(out.PreStop)
	}
	if in.StatusContext != nil {
		out.StatusContext = new(ContainerRecreateRequestContainersStatusContext)
		in.StatusContext.DeepCopyInto(out.StatusContext)
	}
}

// ContainerRecreateRequestStrategy: How to restart the containers.
type ContainerRecreateRequestStrategy struct {
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

func (in *ContainerRecreateRequestStrategy) DeepCopyInto(out *ContainerRecreateRequestStrategy) {
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

// ContainerRecreateRequestSpec: What to restart, and how.
type ContainerRecreateRequestSpec struct {
	// Seconds since the creation of the request after which it is ended; what is unfinished then becomes Failed.
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`
	// The containers to restart, in the order in which they are stopped.
	Containers []ContainerRecreateRequestContainers `json:"containers"`
	// Name of the Pod, in the namespace of the request.
	PodName string `json:"podName"`
	// How to restart the containers.
	Strategy *ContainerRecreateRequestStrategy `json:"strategy,omitempty"`
}

func (in *ContainerRecreateRequestSpec) DeepCopyInto(out *ContainerRecreateRequestSpec) {
	*out = *in
	if in.ActiveDeadlineSeconds != nil {
		out.ActiveDeadlineSeconds = new(int64)
		*out.ActiveDeadlineSeconds = *in.ActiveDeadlineSeconds
	}
	if in.Containers != nil {
		out.Containers = make([]ContainerRecreateRequestContainers, len(in.Containers))
		copy(out.Containers, in.Containers)
		for i1 := range in.Containers {
			in.Containers[i1].DeepCopyInto(&out.Containers[i1])
		}
	}
	if in.Strategy != nil {
		out.Strategy = new(ContainerRecreateRequestStrategy)
		in.Strategy.DeepCopyInto(out.Strategy)
	}
}

// ContainerRecreateRequestStatusContainerRecreateStates: Progress of one container of a request.
type ContainerRecreateRequestStatusContainerRecreateStates struct {
	// The instance that replaced it.
	ContainerID string `json:"containerID,omitempty"`
	// Seconds for which kubelet is expected to delay the start of the new instance (back-off), as estimated when stopping began.
	ExpectedBackOffSeconds *int64 `json:"expectedBackOffSeconds,omitempty"`
	// NotRepeated: the preStop hook was started before a restart of the daemon and is not run again.
	HookNote string `json:"hookNote,omitempty"`
	// When the preStop hook was started.
	HookStartedAt *metav1.Time `json:"hookStartedAt,omitempty"`
	// Method PodSpec: the spelling of the image under which kubelet starts the new instance, recorded before the Pod is changed.
	Image string `json:"image,omitempty"`
	// true once the old instance is gone, whoever stopped it; it is never stopped again for this request.
	IsKilled bool `json:"isKilled,omitempty"`
	// true: another instance had replaced the one that was meant, and this request has stopped nothing.
	IsSkipped bool `json:"isSkipped,omitempty"`
	// When stopping began: the preStop hook, if there is one, else the stop signal.
	KillStartedAt *metav1.Time `json:"killStartedAt,omitempty"`
	// When the old instance was seen to be gone.
	KilledAt *metav1.Time `json:"killedAt,omitempty"`
	// What is going on, or why the container failed.
	Message string `json:"message,omitempty"`
	// Name of the container.
	Name string `json:"name"`
	// Pending, Recreating, Succeeded or Failed.
	Phase string `json:"phase"`
	// The instance this request stops, recorded before it is touched.
	PreviousContainerID string `json:"previousContainerID,omitempty"`
	// Restart count of that instance.
	PreviousRestartCount *int32 `json:"previousRestartCount,omitempty"`
	// When the new instance was seen to be ready.
	ReadyAt *metav1.Time `json:"readyAt,omitempty"`
	// When the new instance was started.
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
}

func (in *ContainerRecreateRequestStatusContainerRecreateStates) DeepCopyInto(out *ContainerRecreateRequestStatusContainerRecreateStates) {
	*out = *in
	if in.ExpectedBackOffSeconds != nil {
		out.ExpectedBackOffSeconds = new(int64)
		*out.ExpectedBackOffSeconds = *in.ExpectedBackOffSeconds
	}
	if in.HookStartedAt != nil {
		out.HookStartedAt = new(metav1.Time)
		in.HookStartedAt.DeepCopyInto(out.HookStartedAt)
	}
	if in.KillStartedAt != nil {
		out.KillStartedAt = new(metav1.Time)
		in.KillStartedAt.DeepCopyInto(out.KillStartedAt)
	}
	if in.KilledAt != nil {
		out.KilledAt = new(metav1.Time)
		in.KilledAt.DeepCopyInto(out.KilledAt)
	}
	if in.PreviousRestartCount != nil {
		out.PreviousRestartCount = new(int32)
		*out.PreviousRestartCount = *in.PreviousRestartCount
	}
	if in.ReadyAt != nil {
		out.ReadyAt = new(metav1.Time)
		in.ReadyAt.DeepCopyInto(out.ReadyAt)
	}
	if in.StartedAt != nil {
		out.StartedAt = new(metav1.Time)
		in.StartedAt.DeepCopyInto(out.StartedAt)
	}
}

// ContainerRecreateRequestStatusContainerStatusSnapshot: A container's entry in the Pod's status at one moment.
type ContainerRecreateRequestStatusContainerStatusSnapshot struct {
	// Its instance, in the form `<runtime>://<id>`.
	ContainerID string `json:"containerID,omitempty"`
	// Name of the container.
	Name string `json:"name"`
	// Whether it was ready.
	Ready bool `json:"ready"`
	// Its restart count.
	RestartCount int32 `json:"restartCount"`
}

func (in *ContainerRecreateRequestStatusContainerStatusSnapshot) DeepCopyInto(out *ContainerRecreateRequestStatusContainerStatusSnapshot) {
	*out = *in
}

// ContainerRecreateRequestStatus: Progress of a request.
type ContainerRecreateRequestStatus struct {
	// When the request was completed.
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// PreRecreateGrace is True from the moment the Pod was made NotReady for this request.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Progress of each container, in the order of spec.containers.
	ContainerRecreateStates []ContainerRecreateRequestStatusContainerRecreateStates `json:"containerRecreateStates,omitempty"`
	// The Pod's own view of the restarted containers when they were last looked at.
	ContainerStatusSnapshot []ContainerRecreateRequestStatusContainerStatusSnapshot `json:"containerStatusSnapshot,omitempty"`
	// Why the request ended abnormally, or what it waits for.
	Message string `json:"message,omitempty"`
	// The generation of the spec that the status is about.
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
	// Pending (another request of the Pod comes first, or the runtime cannot be asked), Recreating, or Completed.
	Phase string `json:"phase"`
}

func (in *ContainerRecreateRequestStatus) DeepCopyInto(out *ContainerRecreateRequestStatus) {
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
	if in.ContainerRecreateStates != nil {
		out.ContainerRecreateStates = make([]ContainerRecreateRequestStatusContainerRecreateStates, len(in.ContainerRecreateStates))
		copy(out.ContainerRecreateStates, in.ContainerRecreateStates)
		for i1 := range in.ContainerRecreateStates {
			in.ContainerRecreateStates[i1].DeepCopyInto(&out.ContainerRecreateStates[i1])
		}
	}
	if in.ContainerStatusSnapshot != nil {
		out.ContainerStatusSnapshot = make([]ContainerRecreateRequestStatusContainerStatusSnapshot, len(in.ContainerStatusSnapshot))
		copy(out.ContainerStatusSnapshot, in.ContainerStatusSnapshot)
		for i1 := range in.ContainerStatusSnapshot {
			in.ContainerStatusSnapshot[i1].DeepCopyInto(&out.ContainerStatusSnapshot[i1])
		}
	}
	if in.ObservedGeneration != nil {
		out.ObservedGeneration = new(int64)
		*out.ObservedGeneration = *in.ObservedGeneration
	}
}

// DaemonSetLifecycleInPlaceUpdate: While any part of it is on a Pod, the Pod is not updated in place; after the update all of it has to be put back before the Pod counts as available.
type DaemonSetLifecycleInPlaceUpdate struct {
	// Finalizers whose presence means "hooked".
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// Labels with the value that means "hooked".
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// Whether the Pod is made NotReady while it waits.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

func (in *DaemonSetLifecycleInPlaceUpdate) DeepCopyInto(out *DaemonSetLifecycleInPlaceUpdate) {
	*out = *in
	if in.FinalizersHandler != nil {
		out.FinalizersHandler = make([]string, len(in.FinalizersHandler))
		copy(out.FinalizersHandler, in.FinalizersHandler)
	}
	if in.LabelsHandler != nil {
		out.LabelsHandler = make(map[string]string, len(in.LabelsHandler))
		for key, value1 := range in.LabelsHandler {
			out.LabelsHandler[key] = value1
		}
	}
}

// DaemonSetLifecyclePreDelete: While any part of it is on a Pod, the Pod is not deleted.
type DaemonSetLifecyclePreDelete struct {
	// Finalizers whose presence means "hooked".
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// Labels with the value that means "hooked".
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// Whether the Pod is made NotReady while it waits.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

func (in *DaemonSetLifecyclePreDelete) DeepCopyInto(out *DaemonSetLifecyclePreDelete) {
	*out = *in
	if in.FinalizersHandler != nil {
		out.FinalizersHandler = make([]string, len(in.FinalizersHandler))
		copy(out.FinalizersHandler, in.FinalizersHandler)
	}
	if in.LabelsHandler != nil {
		out.LabelsHandler = make(map[string]string, len(in.LabelsHandler))
		for key, value1 := range in.LabelsHandler {
			out.LabelsHandler[key] = value1
		}
	}
}

// DaemonSetLifecyclePreNormal: A new Pod counts as available only when all of it is on the Pod.
type DaemonSetLifecyclePreNormal struct {
	// Finalizers whose presence means "hooked".
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// Labels with the value that means "hooked".
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// Whether the Pod is made NotReady while it waits.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

func (in *DaemonSetLifecyclePreNormal) DeepCopyInto(out *DaemonSetLifecyclePreNormal) {
	*out = *in
	if in.FinalizersHandler != nil {
		out.FinalizersHandler = make([]string, len(in.FinalizersHandler))
		copy(out.FinalizersHandler, in.FinalizersHandler)
	}
	if in.LabelsHandler != nil {
		out.LabelsHandler = make(map[string]string, len(in.LabelsHandler))
		for key, value1 := range in.LabelsHandler {
			out.LabelsHandler[key] = value1
		}
	}
}

// DaemonSetLifecycle: Hooks with which another controller holds up the deletion and the update of a Pod.
type DaemonSetLifecycle struct {
	// While any part of it is on a Pod, the Pod is not updated in place; after the update all of it has to be put back before the Pod counts as available.
	InPlaceUpdate *DaemonSetLifecycleInPlaceUpdate `json:"inPlaceUpdate,omitempty"`
	// While any part of it is on a Pod, the Pod is not deleted.
	PreDelete *DaemonSetLifecyclePreDelete `json:"preDelete,omitempty"`
	// A new Pod counts as available only when all of it is on the Pod.
	PreNormal *DaemonSetLifecyclePreNormal `json:"preNormal,omitempty"`
}

func (in *DaemonSetLifecycle) DeepCopyInto(out *DaemonSetLifecycle) {
	*out = *in
	if in.InPlaceUpdate != nil {
		out.InPlaceUpdate = new(DaemonSetLifecycleInPlaceUpdate)
		in.InPlaceUpdate.DeepCopyInto(out.InPlaceUpdate)
	}
	if in.PreDelete != nil {
		out.PreDelete = new(DaemonSetLifecyclePreDelete)
		in.PreDelete.DeepCopyInto(out.PreDelete)
	}
	if in.PreNormal != nil {
		out.PreNormal = new(DaemonSetLifecyclePreNormal)
		in.PreNormal.DeepCopyInto(out.PreNormal)
	}
}

// DaemonSetScaleStrategy: How Pods are added.
type DaemonSetScaleStrategy struct {
	// true: the partition holds back creations as well as updates: once all nodes but those of the partition have a Pod of the new revision, no further Pod is created.
	PartitionedScaling *bool `json:"partitionedScaling,omitempty"`
}

func (in *DaemonSetScaleStrategy) DeepCopyInto(out *DaemonSetScaleStrategy) {
	*out = *in
	if in.PartitionedScaling != nil {
		out.PartitionedScaling = new(bool)
		*out.PartitionedScaling = *in.PartitionedScaling
	}
}

// DaemonSetUpdateStrategyRollingUpdate: How a rolling update is done.
type DaemonSetUpdateStrategyRollingUpdate struct {
	// On how many nodes an old and a new Pod may run side by side during an update: a number, or a percentage rounded up.
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// How many nodes may be without an available Pod during an update: a number, or a percentage of the nodes that are to have a Pod, rounded up.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// On how many nodes Pods are kept on the old revision: a number, or a percentage of the nodes that are to have a Pod, rounded down.
	Partition *intstr.IntOrString `json:"partition,omitempty"`
	// true: no update of a Pod begins; one that its hook has already let go is completed.
	Paused *bool `json:"paused,omitempty"`
	// Standard (the default): another Pod takes the place of the old one.
	RollingUpdateType string `json:"rollingUpdateType,omitempty"`
	// Only Pods on nodes with these labels are updated.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

func (in *DaemonSetUpdateStrategyRollingUpdate) DeepCopyInto(out *DaemonSetUpdateStrategyRollingUpdate) {
	*out = *in
	if in.MaxSurge != nil {
		out.MaxSurge = new(intstr.IntOrString)
		*out.MaxSurge = *in.MaxSurge
	}
	if in.MaxUnavailable != nil {
		out.MaxUnavailable = new(intstr.IntOrString)
		*out.MaxUnavailable = *in.MaxUnavailable
	}
	if in.Partition != nil {
		out.Partition = new(intstr.IntOrString)
		*out.Partition = *in.Partition
	}
	if in.Paused != nil {
		out.Paused = new(bool)
		*out.Paused = *in.Paused
	}
	if in.Selector != nil {
		out.Selector = new(metav1.LabelSelector)
		in.Selector.DeepCopyInto(out.Selector)
	}
}

// DaemonSetUpdateStrategy: How Pods get to a new revision.
type DaemonSetUpdateStrategy struct {
	// How a rolling update is done.
	RollingUpdate *DaemonSetUpdateStrategyRollingUpdate `json:"rollingUpdate,omitempty"`
	// RollingUpdate (the default) or OnDelete.
	Type string `json:"type,omitempty"`
}

func (in *DaemonSetUpdateStrategy) DeepCopyInto(out *DaemonSetUpdateStrategy) {
	*out = *in
	if in.RollingUpdate != nil {
		out.RollingUpdate = new(DaemonSetUpdateStrategyRollingUpdate)
		in.RollingUpdate.DeepCopyInto(out.RollingUpdate)
	}
}

// DaemonSetSpec: What a DaemonSet should be.
type DaemonSetSpec struct {
	// How many Pods are created, deleted or updated in one go at most: a number, or a percentage of the nodes that are to have a Pod, rounded down, at least 1.
	BurstReplicas *intstr.IntOrString `json:"burstReplicas,omitempty"`
	// Hooks with which another controller holds up the deletion and the update of a Pod.
	Lifecycle *DaemonSetLifecycle `json:"lifecycle,omitempty"`
	// Seconds that a Pod has to be ready before it counts as available.
	MinReadySeconds *int32 `json:"minReadySeconds,omitempty"`
	// How Pods are added.
	ScaleStrategy *DaemonSetScaleStrategy `json:"scaleStrategy,omitempty"`
	// The Pods that belong to the DaemonSet, by their labels.
	Selector metav1.LabelSelector `json:"selector"`
	// The Pod that is made.
	Template corev1.PodTemplateSpec `json:"template"`
	// How Pods get to a new revision.
	UpdateStrategy DaemonSetUpdateStrategy `json:"updateStrategy,omitempty"`
}

func (in *DaemonSetSpec) DeepCopyInto(out *DaemonSetSpec) {
	*out = *in
	if in.BurstReplicas != nil {
		out.BurstReplicas = new(intstr.IntOrString)
		*out.BurstReplicas = *in.BurstReplicas
	}
	if in.Lifecycle != nil {
		out.Lifecycle = new(DaemonSetLifecycle)
		in.Lifecycle.DeepCopyInto(out.Lifecycle)
	}
	if in.MinReadySeconds != nil {
		out.MinReadySeconds = new(int32)
		*out.MinReadySeconds = *in.MinReadySeconds
	}
	if in.ScaleStrategy != nil {
		out.ScaleStrategy = new(DaemonSetScaleStrategy)
		in.ScaleStrategy.DeepCopyInto(out.ScaleStrategy)
	}
	in.Selector.DeepCopyInto(&out.Selector)
	in.Template.DeepCopyInto(&out.Template)
	in.UpdateStrategy.DeepCopyInto(&out.UpdateStrategy)
}

// DaemonSetStatusConditions: One observation.
type DaemonSetStatusConditions struct {
	// When the status last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// In words.
	Message string `json:"message,omitempty"`
	// One word.
	Reason string `json:"reason,omitempty"`
	// True, False or Unknown.
	Status string `json:"status,omitempty"`
	// Ready, Reconciling, Stalled, FailedCreatePod or FailedUpdatePod.
	Type string `json:"type,omitempty"`
}

func (in *DaemonSetStatusConditions) DeepCopyInto(out *DaemonSetStatusConditions) {
	*out = *in
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
}

// DaemonSetStatus: What a DaemonSet is.
type DaemonSetStatus struct {
	// How often the name of a new revision was taken.
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// Ready, Reconciling and Stalled, as kstatus reads them; FailedCreatePod and FailedUpdatePod.
	Conditions []DaemonSetStatusConditions `json:"conditions,omitempty"`
	// Of them, those that have one.
	CurrentNumberScheduled int32 `json:"currentNumberScheduled"`
	// The same, under the name that v1alpha1 has for it.
	DaemonSetHash string `json:"daemonSetHash,omitempty"`
	// Nodes that are to have a Pod.
	DesiredNumberScheduled int32 `json:"desiredNumberScheduled"`
	// Of the nodes that are to have a Pod, those whose Pod is available.
	NumberAvailable int32 `json:"numberAvailable"`
	// Nodes that have a Pod and are not to have one.
	NumberMisscheduled int32 `json:"numberMisscheduled"`
	// Of the nodes that are to have a Pod, those whose Pod is ready.
	NumberReady int32 `json:"numberReady"`
	// Of the nodes that are to have a Pod, those that have no available one.
	NumberUnavailable int32 `json:"numberUnavailable"`
	// The generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// The hash of the revision that Pods are updated to.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// Of the nodes that are to have a Pod, those whose Pod is on the update revision.
	UpdatedNumberScheduled int32 `json:"updatedNumberScheduled"`
}

func (in *DaemonSetStatus) DeepCopyInto(out *DaemonSetStatus) {
	*out = *in
	if in.CollisionCount != nil {
		out.CollisionCount = new(int32)
		*out.CollisionCount = *in.CollisionCount
	}
	if in.Conditions != nil {
		out.Conditions = make([]DaemonSetStatusConditions, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
}

// EphemeralJobTemplate: What the Pods get.
type EphemeralJobTemplate struct {
	// Ephemeral containers, as in the spec of a Pod: 1 to 32, each name once.
	EphemeralContainers []corev1.EphemeralContainer `json:"ephemeralContainers,omitempty"`
}

func (in *EphemeralJobTemplate) DeepCopyInto(out *EphemeralJobTemplate) {
	*out = *in
	if in.EphemeralContainers != nil {
		out.EphemeralContainers = make([]corev1.EphemeralContainer, len(in.EphemeralContainers))
		copy(out.EphemeralContainers, in.EphemeralContainers)
		for i1 := range in.EphemeralContainers {
			in.EphemeralContainers[i1].DeepCopyInto(&out.EphemeralContainers[i1])
		}
	}
}

// EphemeralJobSpec: Which containers run in which Pods, and in how many at a time.
type EphemeralJobSpec struct {
	// Seconds since status.startTime after which the job is over as Failed.
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`
	// In how many Pods the containers run, or are about to, at the same time.
	Parallelism *int32 `json:"parallelism,omitempty"`
	// No further Pod gets the containers.
	Paused bool `json:"paused,omitempty"`
	// The most Pods that get the containers: those that were created first.
	Replicas *int32 `json:"replicas,omitempty"`
	// The Pods, in the namespace of the job, that are neither finished nor being deleted.
	Selector metav1.LabelSelector `json:"selector"`
	// What the Pods get.
	Template EphemeralJobTemplate `json:"template"`
}

func (in *EphemeralJobSpec) DeepCopyInto(out *EphemeralJobSpec) {
	*out = *in
	if in.ActiveDeadlineSeconds != nil {
		out.ActiveDeadlineSeconds = new(int64)
		*out.ActiveDeadlineSeconds = *in.ActiveDeadlineSeconds
	}
	if in.Parallelism != nil {
		out.Parallelism = new(int32)
		*out.Parallelism = *in.Parallelism
	}
	if in.Replicas != nil {
		out.Replicas = new(int32)
		*out.Replicas = *in.Replicas
	}
	in.Selector.DeepCopyInto(&out.Selector)
	in.Template.DeepCopyInto(&out.Template)
}

// EphemeralJobStatus: How far the job is.
type EphemeralJobStatus struct {
	// When the job was over.
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Initialized, MatchedEmpty, JobSucceeded, JobFailed, JobError, ContainersBlocked, and Ready, Reconciling and Stalled.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Pods with a container that ended with another exit code, or that could not be run.
	Failed int32 `json:"failed"`
	// Pods that the job is for: those that have the containers, or had them and are done, and those that are to get them.
	Match int32 `json:"match"`
	// The generation that was looked at last.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Waiting, Running, Paused, Succeeded, Failed or Error.
	Phase string `json:"phase,omitempty"`
	// Pods with a container that runs.
	Running int32 `json:"running"`
	// When the job began.
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// Pods whose containers all ended with exit code 0.
	Succeeded int32 `json:"succeeded"`
	// Pods that have the containers, of which kubelet has reported nothing yet.
	Unreported int32 `json:"unreported"`
	// Pods whose containers wait to be started.
	Waiting int32 `json:"waiting"`
}

func (in *EphemeralJobStatus) DeepCopyInto(out *EphemeralJobStatus) {
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
	if in.StartTime != nil {
		out.StartTime = new(metav1.Time)
		in.StartTime.DeepCopyInto(out.StartTime)
	}
}

// ImageListPullJobCompletionPolicy: When the job is over.
type ImageListPullJobCompletionPolicy struct {
	// Seconds after the begin when the job is over, whatever has been pulled; nodes without the image then count as failed.
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`
	// Seconds after the end when the job is deleted.
	TtlSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// Always: the job is over when every selected node has the image or has failed.
	Type string `json:"type,omitempty"`
}

func (in *ImageListPullJobCompletionPolicy) DeepCopyInto(out *ImageListPullJobCompletionPolicy) {
	*out = *in
	if in.ActiveDeadlineSeconds != nil {
		out.ActiveDeadlineSeconds = new(int64)
		*out.ActiveDeadlineSeconds = *in.ActiveDeadlineSeconds
	}
	if in.TtlSecondsAfterFinished != nil {
		out.TtlSecondsAfterFinished = new(int32)
		*out.TtlSecondsAfterFinished = *in.TtlSecondsAfterFinished
	}
}

// ImageListPullJobSandboxConfig: Labels and annotations that are handed to the container runtime with the pulls.
type ImageListPullJobSandboxConfig struct {
	// Annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels.
	Labels map[string]string `json:"labels,omitempty"`
}

func (in *ImageListPullJobSandboxConfig) DeepCopyInto(out *ImageListPullJobSandboxConfig) {
	*out = *in
	if in.Annotations != nil {
		out.Annotations = make(map[string]string, len(in.Annotations))
		for key, value1 := range in.Annotations {
			out.Annotations[key] = value1
		}
	}
	if in.Labels != nil {
		out.Labels = make(map[string]string, len(in.Labels))
		for key, value1 := range in.Labels {
			out.Labels[key] = value1
		}
	}
}

// ImageListPullJobSelectorMatchExpressions: A label selector requirement is a selector that contains values, a key, and an operator that relates the key and values.
type ImageListPullJobSelectorMatchExpressions struct {
	// key is the label key that the selector applies to.
	Key string `json:"key"`
	// operator represents a key's relationship to a set of values.
	Operator string `json:"operator"`
	// values is an array of string values.
	Values []string `json:"values,omitempty"`
}

func (in *ImageListPullJobSelectorMatchExpressions) DeepCopyInto(out *ImageListPullJobSelectorMatchExpressions) {
	*out = *in
	if in.Values != nil {
		out.Values = make([]string, len(in.Values))
		copy(out.Values, in.Values)
	}
}

// ImageListPullJobSelector: The nodes.
type ImageListPullJobSelector struct {
	// Rules for labels of the nodes; all of them have to hold.
	MatchExpressions []ImageListPullJobSelectorMatchExpressions `json:"matchExpressions,omitempty"`
	// Labels that the nodes have to have.
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// Names of nodes.
	Names []string `json:"names,omitempty"`
}

func (in *ImageListPullJobSelector) DeepCopyInto(out *ImageListPullJobSelector) {
	*out = *in
	if in.MatchExpressions != nil {
		out.MatchExpressions = make([]ImageListPullJobSelectorMatchExpressions, len(in.MatchExpressions))
		copy(out.MatchExpressions, in.MatchExpressions)
		for i1 := range in.MatchExpressions {
			in.MatchExpressions[i1].DeepCopyInto(&out.MatchExpressions[i1])
		}
	}
	if in.MatchLabels != nil {
		out.MatchLabels = make(map[string]string, len(in.MatchLabels))
		for key, value1 := range in.MatchLabels {
			out.MatchLabels[key] = value1
		}
	}
	if in.Names != nil {
		out.Names = make([]string, len(in.Names))
		copy(out.Names, in.Names)
	}
}

// ImageListPullJobSpec: Which images are pulled on which nodes, and how fast.
type ImageListPullJobSpec struct {
	// When the job is over.
	CompletionPolicy ImageListPullJobCompletionPolicy `json:"completionPolicy,omitempty"`
	// IfNotPresent: a node that has an image already does not pull it.
	ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
	// The images: [registry/]name[:tag][@digest], 1 to 255, each once.
	Images []string `json:"images"`
	// How many nodes pull at a time, for each image.
	Parallelism *intstr.IntOrString `json:"parallelism,omitempty"`
	// The nodes on which Pods with these labels run, in the namespace of the job.
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// Names of Secrets in the namespace of the job with the credentials for the registries, of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg.
	PullSecrets []string `json:"pullSecrets,omitempty"`
	// Labels and annotations that are handed to the container runtime with the pulls.
	SandboxConfig *ImageListPullJobSandboxConfig `json:"sandboxConfig,omitempty"`
	// The nodes.
	Selector *ImageListPullJobSelector `json:"selector,omitempty"`
}

func (in *ImageListPullJobSpec) DeepCopyInto(out *ImageListPullJobSpec) {
	*out = *in
	in.CompletionPolicy.DeepCopyInto(&out.CompletionPolicy)
	if in.Images != nil {
		out.Images = make([]string, len(in.Images))
		copy(out.Images, in.Images)
	}
	if in.Parallelism != nil {
		out.Parallelism = new(intstr.IntOrString)
		*out.Parallelism = *in.Parallelism
	}
	if in.PodSelector != nil {
		out.PodSelector = new(metav1.LabelSelector)
		in.PodSelector.DeepCopyInto(out.PodSelector)
	}
	if in.PullSecrets != nil {
		out.PullSecrets = make([]string, len(in.PullSecrets))
		copy(out.PullSecrets, in.PullSecrets)
	}
	if in.SandboxConfig != nil {
		out.SandboxConfig = new(ImageListPullJobSandboxConfig)
		in.SandboxConfig.DeepCopyInto(out.SandboxConfig)
	}
	if in.Selector != nil {
		out.Selector = new(ImageListPullJobSelector)
		in.Selector.DeepCopyInto(out.Selector)
	}
}

// ImageListPullJobStatusFailedImageStatuses: An image that some node could not pull.
type ImageListPullJobStatusFailedImageStatuses struct {
	// The ImagePullJob that says more.
	ImagePullJob string `json:"imagePullJob,omitempty"`
	// In words.
	Message string `json:"message,omitempty"`
	// The image.
	Name string `json:"name,omitempty"`
}

func (in *ImageListPullJobStatusFailedImageStatuses) DeepCopyInto(out *ImageListPullJobStatusFailedImageStatuses) {
	*out = *in
}

// ImageListPullJobStatus: How far the jobs are.
type ImageListPullJobStatus struct {
	// Images that are being pulled.
	Active int32 `json:"active"`
	// Images whose nodes are all done, well or badly.
	Completed int32 `json:"completed"`
	// When the job was over.
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Progressing, Complete and Failed, as those of an ImagePullJob.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Images of the list.
	Desired int32 `json:"desired"`
	// Images that some node could not pull, in the order of the list.
	FailedImageStatuses []ImageListPullJobStatusFailedImageStatuses `json:"failedImageStatuses,omitempty"`
	// The generation of the spec that the status is about.
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
	// When the job began.
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// Images that all their nodes have.
	Succeeded int32 `json:"succeeded"`
}

func (in *ImageListPullJobStatus) DeepCopyInto(out *ImageListPullJobStatus) {
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
	if in.FailedImageStatuses != nil {
		out.FailedImageStatuses = make([]ImageListPullJobStatusFailedImageStatuses, len(in.FailedImageStatuses))
		copy(out.FailedImageStatuses, in.FailedImageStatuses)
		for i1 := range in.FailedImageStatuses {
			in.FailedImageStatuses[i1].DeepCopyInto(&out.FailedImageStatuses[i1])
		}
	}
	if in.ObservedGeneration != nil {
		out.ObservedGeneration = new(int64)
		*out.ObservedGeneration = *in.ObservedGeneration
	}
	if in.StartTime != nil {
		out.StartTime = new(metav1.Time)
		in.StartTime.DeepCopyInto(out.StartTime)
	}
}

// ImagePullJobCompletionPolicy: When the job is over.
type ImagePullJobCompletionPolicy struct {
	// Seconds after the begin when the job is over, whatever has been pulled; nodes without the image then count as failed.
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`
	// Seconds after the end when the job is deleted.
	TtlSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// Always: the job is over when every selected node has the image or has failed.
	Type string `json:"type,omitempty"`
}

func (in *ImagePullJobCompletionPolicy) DeepCopyInto(out *ImagePullJobCompletionPolicy) {
	*out = *in
	if in.ActiveDeadlineSeconds != nil {
		out.ActiveDeadlineSeconds = new(int64)
		*out.ActiveDeadlineSeconds = *in.ActiveDeadlineSeconds
	}
	if in.TtlSecondsAfterFinished != nil {
		out.TtlSecondsAfterFinished = new(int32)
		*out.TtlSecondsAfterFinished = *in.TtlSecondsAfterFinished
	}
}

// ImagePullJobSandboxConfig: Labels and annotations that are handed to the container runtime with the pull.
type ImagePullJobSandboxConfig struct {
	// Annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels.
	Labels map[string]string `json:"labels,omitempty"`
}

func (in *ImagePullJobSandboxConfig) DeepCopyInto(out *ImagePullJobSandboxConfig) {
	*out = *in
	if in.Annotations != nil {
		out.Annotations = make(map[string]string, len(in.Annotations))
		for key, value1 := range in.Annotations {
			out.Annotations[key] = value1
		}
	}
	if in.Labels != nil {
		out.Labels = make(map[string]string, len(in.Labels))
		for key, value1 := range in.Labels {
			out.Labels[key] = value1
		}
	}
}

// ImagePullJobSelectorMatchExpressions: A label selector requirement is a selector that contains values, a key, and an operator that relates the key and values.
type ImagePullJobSelectorMatchExpressions struct {
	// key is the label key that the selector applies to.
	Key string `json:"key"`
	// operator represents a key's relationship to a set of values.
	Operator string `json:"operator"`
	// values is an array of string values.
	Values []string `json:"values,omitempty"`
}

func (in *ImagePullJobSelectorMatchExpressions) DeepCopyInto(out *ImagePullJobSelectorMatchExpressions) {
	*out = *in
	if in.Values != nil {
		out.Values = make([]string, len(in.Values))
		copy(out.Values, in.Values)
	}
}

// ImagePullJobSelector: The nodes.
type ImagePullJobSelector struct {
	// Rules for labels of the nodes; all of them have to hold.
	MatchExpressions []ImagePullJobSelectorMatchExpressions `json:"matchExpressions,omitempty"`
	// Labels that the nodes have to have.
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// Names of nodes.
	Names []string `json:"names,omitempty"`
}

func (in *ImagePullJobSelector) DeepCopyInto(out *ImagePullJobSelector) {
	*out = *in
	if in.MatchExpressions != nil {
		out.MatchExpressions = make([]ImagePullJobSelectorMatchExpressions, len(in.MatchExpressions))
		copy(out.MatchExpressions, in.MatchExpressions)
		for i1 := range in.MatchExpressions {
			in.MatchExpressions[i1].DeepCopyInto(&out.MatchExpressions[i1])
		}
	}
	if in.MatchLabels != nil {
		out.MatchLabels = make(map[string]string, len(in.MatchLabels))
		for key, value1 := range in.MatchLabels {
			out.MatchLabels[key] = value1
		}
	}
	if in.Names != nil {
		out.Names = make([]string, len(in.Names))
		copy(out.Names, in.Names)
	}
}

// ImagePullJobSpec: Which image is pulled on which nodes, and how fast.
type ImagePullJobSpec struct {
	// When the job is over.
	CompletionPolicy ImagePullJobCompletionPolicy `json:"completionPolicy,omitempty"`
	// The image: [registry/]name[:tag][@digest].
	Image string `json:"image"`
	// IfNotPresent: a node that has the image already pulls nothing.
	ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
	// How many nodes pull at a time.
	Parallelism *intstr.IntOrString `json:"parallelism,omitempty"`
	// The nodes on which Pods with these labels run, in the namespace of the job.
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// Names of Secrets in the namespace of the job with the credentials for the registry, of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg.
	PullSecrets []string `json:"pullSecrets,omitempty"`
	// Labels and annotations that are handed to the container runtime with the pull.
	SandboxConfig *ImagePullJobSandboxConfig `json:"sandboxConfig,omitempty"`
	// The nodes.
	Selector *ImagePullJobSelector `json:"selector,omitempty"`
}

func (in *ImagePullJobSpec) DeepCopyInto(out *ImagePullJobSpec) {
	*out = *in
	in.CompletionPolicy.DeepCopyInto(&out.CompletionPolicy)
	if in.Parallelism != nil {
		out.Parallelism = new(intstr.IntOrString)
		*out.Parallelism = *in.Parallelism
	}
	if in.PodSelector != nil {
		out.PodSelector = new(metav1.LabelSelector)
		in.PodSelector.DeepCopyInto(out.PodSelector)
	}
	if in.PullSecrets != nil {
		out.PullSecrets = make([]string, len(in.PullSecrets))
		copy(out.PullSecrets, in.PullSecrets)
	}
	if in.SandboxConfig != nil {
		out.SandboxConfig = new(ImagePullJobSandboxConfig)
		in.SandboxConfig.DeepCopyInto(out.SandboxConfig)
	}
	if in.Selector != nil {
		out.Selector = new(ImagePullJobSelector)
		in.Selector.DeepCopyInto(out.Selector)
	}
}

// ImagePullJobStatus: How far a job is.
type ImagePullJobStatus struct {
	// Nodes that pull, or are to pull.
	Active int32 `json:"active"`
	// When the job was over.
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Progressing (True while nodes are to pull; its reason and message say what is waited for), Complete (every node has the image) and Failed (the job is over, and some node does not have it; its message says which and why).
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Nodes that are selected.
	Desired int32 `json:"desired"`
	// Nodes that could not pull it.
	Failed int32 `json:"failed"`
	// Names of the nodes that could not pull it, sorted.
	FailedNodes []string `json:"failedNodes,omitempty"`
	// Progress in words.
	Message string `json:"message,omitempty"`
	// The generation of the spec that the status is about.
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
	// When the job began.
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// Nodes that have the image.
	Succeeded int32 `json:"succeeded"`
}

func (in *ImagePullJobStatus) DeepCopyInto(out *ImagePullJobStatus) {
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
	if in.FailedNodes != nil {
		out.FailedNodes = make([]string, len(in.FailedNodes))
		copy(out.FailedNodes, in.FailedNodes)
	}
	if in.ObservedGeneration != nil {
		out.ObservedGeneration = new(int64)
		*out.ObservedGeneration = *in.ObservedGeneration
	}
	if in.StartTime != nil {
		out.StartTime = new(metav1.Time)
		in.StartTime.DeepCopyInto(out.StartTime)
	}
}

// NodeImageImagesPullSecrets: A Secret.
type NodeImageImagesPullSecrets struct {
	// job for one that an ImagePullJob names, batch for a copy that OpenKruise made for several jobs, empty for one that was written by hand.
	Mode string `json:"mode,omitempty"`
	// Its name.
	Name string `json:"name,omitempty"`
	// Its namespace.
	Namespace string `json:"namespace,omitempty"`
}

func (in *NodeImageImagesPullSecrets) DeepCopyInto(out *NodeImageImagesPullSecrets) {
	*out = *in
}

// NodeImageImagesSandboxConfig: Labels and annotations that are handed to the container runtime with the pull.
type NodeImageImagesSandboxConfig struct {
	// Annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels.
	Labels map[string]string `json:"labels,omitempty"`
}

func (in *NodeImageImagesSandboxConfig) DeepCopyInto(out *NodeImageImagesSandboxConfig) {
	*out = *in
	if in.Annotations != nil {
		out.Annotations = make(map[string]string, len(in.Annotations))
		for key, value1 := range in.Annotations {
			out.Annotations[key] = value1
		}
	}
	if in.Labels != nil {
		out.Labels = make(map[string]string, len(in.Labels))
		for key, value1 := range in.Labels {
			out.Labels[key] = value1
		}
	}
}

// NodeImageImagesTagsPullPolicy: How often the node tries, and for how long.
type NodeImageImagesTagsPullPolicy struct {
	// Seconds that all attempts may take together.
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`
	// How often the node tries again after the first attempt has failed.
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`
	// Seconds that one attempt may take.
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
	// Seconds after the end of the pull when the entry is removed; the image stays on the node.
	TtlSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

func (in *NodeImageImagesTagsPullPolicy) DeepCopyInto(out *NodeImageImagesTagsPullPolicy) {
	*out = *in
	if in.ActiveDeadlineSeconds != nil {
		out.ActiveDeadlineSeconds = new(int64)
		*out.ActiveDeadlineSeconds = *in.ActiveDeadlineSeconds
	}
	if in.BackoffLimit != nil {
		out.BackoffLimit = new(int32)
		*out.BackoffLimit = *in.BackoffLimit
	}
	if in.TimeoutSeconds != nil {
		out.TimeoutSeconds = new(int32)
		*out.TimeoutSeconds = *in.TimeoutSeconds
	}
	if in.TtlSecondsAfterFinished != nil {
		out.TtlSecondsAfterFinished = new(int32)
		*out.TtlSecondsAfterFinished = *in.TtlSecondsAfterFinished
	}
}

// NodeImageImagesTags: One image that the node is to have.
type NodeImageImagesTags struct {
	// When the image was asked for last.
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`
	// IfNotPresent: an image that the node has is not pulled again.
	ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
	// Who wants the image, in most cases ImagePullJobs.
	OwnerReferences []corev1.ObjectReference `json:"ownerReferences,omitempty"`
	// How often the node tries, and for how long.
	PullPolicy *NodeImageImagesTagsPullPolicy `json:"pullPolicy,omitempty"`
	// The tag, or the digest: sha256:...
	Tag string `json:"tag"`
	// A higher version means: pull it again.
	Version int64 `json:"version,omitempty"`
}

func (in *NodeImageImagesTags) DeepCopyInto(out *NodeImageImagesTags) {
	*out = *in
	if in.CreatedAt != nil {
		out.CreatedAt = new(metav1.Time)
		in.CreatedAt.DeepCopyInto(out.CreatedAt)
	}
	if in.OwnerReferences != nil {
		out.OwnerReferences = make([]corev1.ObjectReference, len(in.OwnerReferences))
		copy(out.OwnerReferences, in.OwnerReferences)
		for i1 := range in.OwnerReferences {
			in.OwnerReferences[i1].DeepCopyInto(&out.OwnerReferences[i1])
		}
	}
	if in.PullPolicy != nil {
		out.PullPolicy = new(NodeImageImagesTagsPullPolicy)
		in.PullPolicy.DeepCopyInto(out.PullPolicy)
	}
}

// NodeImageImages: What the node is to have of one repository.
type NodeImageImages struct {
	// Secrets with credentials for the registry.
	PullSecrets []NodeImageImagesPullSecrets `json:"pullSecrets,omitempty"`
	// Labels and annotations that are handed to the container runtime with the pull.
	SandboxConfig *NodeImageImagesSandboxConfig `json:"sandboxConfig,omitempty"`
	// The tags, each once.
	Tags []NodeImageImagesTags `json:"tags,omitempty"`
}

func (in *NodeImageImages) DeepCopyInto(out *NodeImageImages) {
	*out = *in
	if in.PullSecrets != nil {
		out.PullSecrets = make([]NodeImageImagesPullSecrets, len(in.PullSecrets))
		copy(out.PullSecrets, in.PullSecrets)
		for i1 := range in.PullSecrets {
			in.PullSecrets[i1].DeepCopyInto(&out.PullSecrets[i1])
		}
	}
	if in.SandboxConfig != nil {
		out.SandboxConfig = new(NodeImageImagesSandboxConfig)
		in.SandboxConfig.DeepCopyInto(out.SandboxConfig)
	}
	if in.Tags != nil {
		out.Tags = make([]NodeImageImagesTags, len(in.Tags))
		copy(out.Tags, in.Tags)
		for i1 := range in.Tags {
			in.Tags[i1].DeepCopyInto(&out.Tags[i1])
		}
	}
}

// NodeImageSpec: Which images the node of that name is to have.
type NodeImageSpec struct {
	// The images, by the name of the repository: busybox for docker.io/library/busybox, registry.example/team/app with its registry.
	Images map[string]NodeImageImages `json:"images,omitempty"`
}

func (in *NodeImageSpec) DeepCopyInto(out *NodeImageSpec) {
	*out = *in
	if in.Images != nil {
		out.Images = make(map[string]NodeImageImages, len(in.Images))
		for key, value1 := range in.Images {
			copied := value1
			value1.DeepCopyInto(&copied)
			out.Images[key] = copied
		}
	}
}

// NodeImageStatusFirstSyncStatus: What became of the images of the first synchronization.
type NodeImageStatusFirstSyncStatus struct {
	// In words.
	Message string `json:"message,omitempty"`
	// Succeeded or Failed.
	Status string `json:"status,omitempty"`
	// When all of them had ended.
	SyncAt *metav1.Time `json:"syncAt,omitempty"`
}

func (in *NodeImageStatusFirstSyncStatus) DeepCopyInto(out *NodeImageStatusFirstSyncStatus) {
	*out = *in
	if in.SyncAt != nil {
		out.SyncAt = new(metav1.Time)
		in.SyncAt.DeepCopyInto(out.SyncAt)
	}
}

// NodeImageStatusImageStatusesTags: What became of one image.
type NodeImageStatusImageStatusesTags struct {
	// When the pull ended, well or badly.
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// The image that the runtime has now: <repository>@<id>.
	ImageID string `json:"imageID,omitempty"`
	// Why the pull failed, or what it waits for.
	Message string `json:"message,omitempty"`
	// Waiting (for others to be pulled), Pulling, Succeeded or Failed.
	Phase string `json:"phase,omitempty"`
	// How much has been pulled, in percent.
	Progress int32 `json:"progress"`
	// When the pull began.
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// The tag, or the digest.
	Tag string `json:"tag,omitempty"`
	// The version of the entry in the spec that this is about.
	Version int64 `json:"version"`
}

func (in *NodeImageStatusImageStatusesTags) DeepCopyInto(out *NodeImageStatusImageStatusesTags) {
	*out = *in
	if in.CompletionTime != nil {
		out.CompletionTime = new(metav1.Time)
		in.CompletionTime.DeepCopyInto(out.CompletionTime)
	}
	if in.StartTime != nil {
		out.StartTime = new(metav1.Time)
		in.StartTime.DeepCopyInto(out.StartTime)
	}
}

// NodeImageStatusImageStatuses: What became of the tags of one repository.
type NodeImageStatusImageStatuses struct {
	// The tags.
	Tags []NodeImageStatusImageStatusesTags `json:"tags,omitempty"`
}

func (in *NodeImageStatusImageStatuses) DeepCopyInto(out *NodeImageStatusImageStatuses) {
	*out = *in
	if in.Tags != nil {
		out.Tags = make([]NodeImageStatusImageStatusesTags, len(in.Tags))
		copy(out.Tags, in.Tags)
		for i1 := range in.Tags {
			in.Tags[i1].DeepCopyInto(&out.Tags[i1])
		}
	}
}

// NodeImageStatus: What became of the images.
type NodeImageStatus struct {
	// Images that the node is to have.
	Desired int32 `json:"desired"`
	// Images that could not be pulled.
	Failed int32 `json:"failed"`
	// What became of the images of the first synchronization.
	FirstSyncStatus *NodeImageStatusFirstSyncStatus `json:"firstSyncStatus,omitempty"`
	// The images, by the name of the repository.
	ImageStatuses map[string]NodeImageStatusImageStatuses `json:"imageStatuses,omitempty"`
	// Images that are being pulled.
	Pulling int32 `json:"pulling"`
	// Images that the node has.
	Succeeded int32 `json:"succeeded"`
	// Images that wait for others to be pulled.
	Waiting int32 `json:"waiting"`
}

func (in *NodeImageStatus) DeepCopyInto(out *NodeImageStatus) {
	*out = *in
	if in.FirstSyncStatus != nil {
		out.FirstSyncStatus = new(NodeImageStatusFirstSyncStatus)
		in.FirstSyncStatus.DeepCopyInto(out.FirstSyncStatus)
	}
	if in.ImageStatuses != nil {
		out.ImageStatuses = make(map[string]NodeImageStatusImageStatuses, len(in.ImageStatuses))
		for key, value1 := range in.ImageStatuses {
			copied := value1
			value1.DeepCopyInto(&copied)
			out.ImageStatuses[key] = copied
		}
	}
}

// NodePodProbePodProbesProbes: One probe.
type NodePodProbePodProbesProbes struct {
	// The container.
	ContainerName string `json:"containerName"`
	// PODPROBEMARKER#PROBE.
	Name string `json:"name"`
	// How; the names of ports have become numbers.
	Probe corev1.Probe `json:"probe"`
}

func (in *NodePodProbePodProbesProbes) DeepCopyInto(out *NodePodProbePodProbesProbes) {
	*out = *in
	in.Probe.DeepCopyInto(&out.Probe)
}

// NodePodProbePodProbes: The probes of a Pod.
type NodePodProbePodProbes struct {
	// Its address.
	IP string `json:"IP,omitempty"`
	// Name of the Pod.
	Name string `json:"name"`
	// Its namespace.
	Namespace string `json:"namespace"`
	// What is probed in it.
	Probes []NodePodProbePodProbesProbes `json:"probes,omitempty"`
	// Its UID: another Pod of the same name is not meant.
	Uid string `json:"uid"`
}

func (in *NodePodProbePodProbes) DeepCopyInto(out *NodePodProbePodProbes) {
	*out = *in
	if in.Probes != nil {
		out.Probes = make([]NodePodProbePodProbesProbes, len(in.Probes))
		copy(out.Probes, in.Probes)
		for i1 := range in.Probes {
			in.Probes[i1].DeepCopyInto(&out.Probes[i1])
		}
	}
}

// NodePodProbeSpec: What is probed on the node.
type NodePodProbeSpec struct {
	// Pods of the node.
	PodProbes []NodePodProbePodProbes `json:"podProbes,omitempty"`
}

func (in *NodePodProbeSpec) DeepCopyInto(out *NodePodProbeSpec) {
	*out = *in
	if in.PodProbes != nil {
		out.PodProbes = make([]NodePodProbePodProbes, len(in.PodProbes))
		copy(out.PodProbes, in.PodProbes)
		for i1 := range in.PodProbes {
			in.PodProbes[i1].DeepCopyInto(&out.PodProbes[i1])
		}
	}
}

// NodePodProbeStatusPodProbeStatusesProbeStates: One result.
type NodePodProbeStatusPodProbeStatusesProbeStates struct {
	// When the state or the message last changed.
	LastProbeTime *metav1.Time `json:"lastProbeTime,omitempty"`
	// When the state last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// What the probe said, up to 1,024 bytes.
	Message string `json:"message,omitempty"`
	// PODPROBEMARKER#PROBE.
	Name string `json:"name"`
	// Succeeded, Failed, or Unknown: the container has started, and nothing is known yet.
	State string `json:"state"`
}

func (in *NodePodProbeStatusPodProbeStatusesProbeStates) DeepCopyInto(out *NodePodProbeStatusPodProbeStatusesProbeStates) {
	*out = *in
	if in.LastProbeTime != nil {
		out.LastProbeTime = new(metav1.Time)
		in.LastProbeTime.DeepCopyInto(out.LastProbeTime)
	}
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
}

// NodePodProbeStatusPodProbeStatuses: The results of a Pod.
type NodePodProbeStatusPodProbeStatuses struct {
	// Name of the Pod.
	Name string `json:"name"`
	// Its namespace.
	Namespace string `json:"namespace"`
	// One for each probe that has a result.
	ProbeStates []NodePodProbeStatusPodProbeStatusesProbeStates `json:"probeStates,omitempty"`
	// Its UID.
	Uid string `json:"uid"`
}

func (in *NodePodProbeStatusPodProbeStatuses) DeepCopyInto(out *NodePodProbeStatusPodProbeStatuses) {
	*out = *in
	if in.ProbeStates != nil {
		out.ProbeStates = make([]NodePodProbeStatusPodProbeStatusesProbeStates, len(in.ProbeStates))
		copy(out.ProbeStates, in.ProbeStates)
		for i1 := range in.ProbeStates {
			in.ProbeStates[i1].DeepCopyInto(&out.ProbeStates[i1])
		}
	}
}

// NodePodProbeStatus: What the daemon found.
type NodePodProbeStatus struct {
	// Pods with results.
	PodProbeStatuses []NodePodProbeStatusPodProbeStatuses `json:"podProbeStatuses,omitempty"`
}

func (in *NodePodProbeStatus) DeepCopyInto(out *NodePodProbeStatus) {
	*out = *in
	if in.PodProbeStatuses != nil {
		out.PodProbeStatuses = make([]NodePodProbeStatusPodProbeStatuses, len(in.PodProbeStatuses))
		copy(out.PodProbeStatuses, in.PodProbeStatuses)
		for i1 := range in.PodProbeStatuses {
			in.PodProbeStatuses[i1].DeepCopyInto(&out.PodProbeStatuses[i1])
		}
	}
}

// PersistentPodStatePreferredPersistentTopologyPreference: The keys; a node fits if all of them are the same.
type PersistentPodStatePreferredPersistentTopologyPreference struct {
	// Keys of node labels, for example kubernetes.io/hostname or topology.kubernetes.io/zone.
	NodeTopologyKeys []string `json:"nodeTopologyKeys"`
}

func (in *PersistentPodStatePreferredPersistentTopologyPreference) DeepCopyInto(out *PersistentPodStatePreferredPersistentTopologyPreference) {
	*out = *in
	if in.NodeTopologyKeys != nil {
		out.NodeTopologyKeys = make([]string, len(in.NodeTopologyKeys))
		copy(out.NodeTopologyKeys, in.NodeTopologyKeys)
	}
}

// PersistentPodStatePreferredPersistentTopology: Keys of node labels that should be the same.
type PersistentPodStatePreferredPersistentTopology struct {
	// The keys; a node fits if all of them are the same.
	Preference PersistentPodStatePreferredPersistentTopologyPreference `json:"preference"`
	// How much a fitting node counts, from 1 to 100.
	Weight int32 `json:"weight"`
}

func (in *PersistentPodStatePreferredPersistentTopology) DeepCopyInto(out *PersistentPodStatePreferredPersistentTopology) {
	*out = *in
	in.Preference.DeepCopyInto(&out.Preference)
}

// PersistentPodStateRequiredPersistentTopology: Node labels that have to be the same: the Pod is Pending while no such node has room for it.
type PersistentPodStateRequiredPersistentTopology struct {
	// Keys of node labels, for example kubernetes.io/hostname or topology.kubernetes.io/zone.
	NodeTopologyKeys []string `json:"nodeTopologyKeys"`
}

func (in *PersistentPodStateRequiredPersistentTopology) DeepCopyInto(out *PersistentPodStateRequiredPersistentTopology) {
	*out = *in
	if in.NodeTopologyKeys != nil {
		out.NodeTopologyKeys = make([]string, len(in.NodeTopologyKeys))
		copy(out.NodeTopologyKeys, in.NodeTopologyKeys)
	}
}

// PersistentPodStateTargetRef: The StatefulSet, of apps or of apps.kruise.io, in the same namespace; or a kind that the ConfigMap kruise-configuration names.
type PersistentPodStateTargetRef struct {
	// Group and version: apps/v1, or apps.kruise.io/v1beta1.
	ApiVersion string `json:"apiVersion"`
	// Kind: StatefulSet.
	Kind string `json:"kind"`
	// Name.
	Name string `json:"name"`
}

func (in *PersistentPodStateTargetRef) DeepCopyInto(out *PersistentPodStateTargetRef) {
	*out = *in
}

// PersistentPodStateSpec: Which Pods keep what.
type PersistentPodStateSpec struct {
	// WhenScaled (the default): what is recorded of a Pod goes when the StatefulSet is scaled down below it.
	PersistentPodStateRetentionPolicy string `json:"persistentPodStateRetentionPolicy,omitempty"`
	// Node labels that should be the same, by weight.
	PreferredPersistentTopology []PersistentPodStatePreferredPersistentTopology `json:"preferredPersistentTopology,omitempty"`
	// Node labels that have to be the same: the Pod is Pending while no such node has room for it.
	RequiredPersistentTopology *PersistentPodStateRequiredPersistentTopology `json:"requiredPersistentTopology,omitempty"`
	// The StatefulSet, of apps or of apps.kruise.io, in the same namespace; or a kind that the ConfigMap kruise-configuration names.
	TargetRef PersistentPodStateTargetRef `json:"targetRef"`
}

func (in *PersistentPodStateSpec) DeepCopyInto(out *PersistentPodStateSpec) {
	*out = *in
	if in.PreferredPersistentTopology != nil {
		out.PreferredPersistentTopology = make([]PersistentPodStatePreferredPersistentTopology, len(in.PreferredPersistentTopology))
		copy(out.PreferredPersistentTopology, in.PreferredPersistentTopology)
		for i1 := range in.PreferredPersistentTopology {
			in.PreferredPersistentTopology[i1].DeepCopyInto(&out.PreferredPersistentTopology[i1])
		}
	}
	if in.RequiredPersistentTopology != nil {
		out.RequiredPersistentTopology = new(PersistentPodStateRequiredPersistentTopology)
		in.RequiredPersistentTopology.DeepCopyInto(out.RequiredPersistentTopology)
	}
	in.TargetRef.DeepCopyInto(&out.TargetRef)
}

// PersistentPodStateStatusPodStates: What is recorded of a Pod.
type PersistentPodStateStatusPodStates struct {
	// The annotations of the Pod, of those that are asked for.
	Annotations map[string]string `json:"annotations,omitempty"`
	// The node on which it was Ready last; empty when that node is gone and others have the same labels.
	NodeName string `json:"nodeName,omitempty"`
	// The labels of that node, of those that are asked for.
	NodeTopologyLabels map[string]string `json:"nodeTopologyLabels,omitempty"`
}

func (in *PersistentPodStateStatusPodStates) DeepCopyInto(out *PersistentPodStateStatusPodStates) {
	*out = *in
	if in.Annotations != nil {
		out.Annotations = make(map[string]string, len(in.Annotations))
		for key, value1 := range in.Annotations {
			out.Annotations[key] = value1
		}
	}
	if in.NodeTopologyLabels != nil {
		out.NodeTopologyLabels = make(map[string]string, len(in.NodeTopologyLabels))
		for key, value1 := range in.NodeTopologyLabels {
			out.NodeTopologyLabels[key] = value1
		}
	}
}

// PersistentPodStateStatus: What is recorded.
type PersistentPodStateStatus struct {
	// Ready: the place of every Ready Pod is recorded.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The generation of the spec that this status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// What is recorded of each Pod, by its name.
	PodStates map[string]PersistentPodStateStatusPodStates `json:"podStates,omitempty"`
	// UID of the workload whose Pods are recorded.
	TargetUid string `json:"targetUid,omitempty"`
}

func (in *PersistentPodStateStatus) DeepCopyInto(out *PersistentPodStateStatus) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.PodStates != nil {
		out.PodStates = make(map[string]PersistentPodStateStatusPodStates, len(in.PodStates))
		for key, value1 := range in.PodStates {
			copied := value1
			value1.DeepCopyInto(&copied)
			out.PodStates[key] = copied
		}
	}
}

// PodProbeMarkerProbes: One probe of one container.
type PodProbeMarkerProbes struct {
	// The container that is probed.
	ContainerName string `json:"containerName"`
	// Its name, unique in the object, without '#'.
	Name string `json:"name"`
	// The condition of the Pod that has the result, such as example.com/idle.
	PodConditionType string `json:"podConditionType,omitempty"`
	// How: exec, httpGet or tcpSocket, always in the container or at the Pod's own address.
	Probe corev1.Probe `json:"probe"`
}

func (in *PodProbeMarkerProbes) DeepCopyInto(out *PodProbeMarkerProbes) {
	*out = *in
	in.Probe.DeepCopyInto(&out.Probe)
}

// PodProbeMarkerSpec: Which Pods are probed, and how.
type PodProbeMarkerSpec struct {
	// What is probed; at least one.
	Probes []PodProbeMarkerProbes `json:"probes"`
	// The Pods of the namespace that are probed, by their labels.
	Selector metav1.LabelSelector `json:"selector"`
}

func (in *PodProbeMarkerSpec) DeepCopyInto(out *PodProbeMarkerSpec) {
	*out = *in
	if in.Probes != nil {
		out.Probes = make([]PodProbeMarkerProbes, len(in.Probes))
		copy(out.Probes, in.Probes)
		for i1 := range in.Probes {
			in.Probes[i1].DeepCopyInto(&out.Probes[i1])
		}
	}
	in.Selector.DeepCopyInto(&out.Selector)
}

// PodProbeMarkerStatus: What became of it.
type PodProbeMarkerStatus struct {
	// Accepted: False while the selector is one that is refused, so that no Pod is probed, or while the object names labels, annotations or conditions of Kubernetes, Kruise or others, which are not written; its message names them.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Pods that are probed.
	MatchedPods int64 `json:"matchedPods"`
	// The generation of the spec that this status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
}

func (in *PodProbeMarkerStatus) DeepCopyInto(out *PodProbeMarkerStatus) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
}

// ResourceDistributionResourceRef: A Secret or ConfigMap that is there already, whose content every copy has and follows.
type ResourceDistributionResourceRef struct {
	// Secret or ConfigMap.
	Kind string `json:"kind"`
	// Its name, which is that of the copies too.
	Name string `json:"name"`
	// The namespace in which it is.
	Namespace string `json:"namespace"`
}

func (in *ResourceDistributionResourceRef) DeepCopyInto(out *ResourceDistributionResourceRef) {
	*out = *in
}

// ResourceDistributionTargetsIncludedNamespacesList: A namespace by its name.
type ResourceDistributionTargetsIncludedNamespacesList struct {
	// Its name.
	Name string `json:"name,omitempty"`
}

func (in *ResourceDistributionTargetsIncludedNamespacesList) DeepCopyInto(out *ResourceDistributionTargetsIncludedNamespacesList) {
	*out = *in
}

// ResourceDistributionTargetsIncludedNamespaces: Namespaces by their names.
type ResourceDistributionTargetsIncludedNamespaces struct {
	// The names.
	List []ResourceDistributionTargetsIncludedNamespacesList `json:"list,omitempty"`
}

func (in *ResourceDistributionTargetsIncludedNamespaces) DeepCopyInto(out *ResourceDistributionTargetsIncludedNamespaces) {
	*out = *in
	if in.List != nil {
		out.List = make([]ResourceDistributionTargetsIncludedNamespacesList, len(in.List))
		copy(out.List, in.List)
		for i1 := range in.List {
			in.List[i1].DeepCopyInto(&out.List[i1])
		}
	}
}

// ResourceDistributionTargets: The namespaces: those of includedNamespaces and of namespaceLabelSelector together, or all, but none of excludedNamespaces.
type ResourceDistributionTargets struct {
	// All namespaces, those that come later and kube-system too.
	AllNamespaces bool `json:"allNamespaces,omitempty"`
	// Namespaces by their names.
	IncludedNamespaces *ResourceDistributionTargetsIncludedNamespaces `json:"includedNamespaces,omitempty"`
	// Namespaces by their labels.
	NamespaceLabelSelector *metav1.LabelSelector `json:"namespaceLabelSelector,omitempty"`
}

func (in *ResourceDistributionTargets) DeepCopyInto(out *ResourceDistributionTargets) {
	*out = *in
	if in.IncludedNamespaces != nil {
		out.IncludedNamespaces = new(ResourceDistributionTargetsIncludedNamespaces)
		in.IncludedNamespaces.DeepCopyInto(out.IncludedNamespaces)
	}
	if in.NamespaceLabelSelector != nil {
		out.NamespaceLabelSelector = new(metav1.LabelSelector)
		in.NamespaceLabelSelector.DeepCopyInto(out.NamespaceLabelSelector)
	}
}

// ResourceDistributionSpec: What is distributed, and to which namespaces.
type ResourceDistributionSpec struct {
	// The Secret or ConfigMap itself, as a manifest: what every copy has, with its labels, annotations and finalizers.
	Resource runtime.RawExtension `json:"resource,omitempty"`
	// A Secret or ConfigMap that is there already, whose content every copy has and follows.
	ResourceRef *ResourceDistributionResourceRef `json:"resourceRef,omitempty"`
	// The namespaces: those of includedNamespaces and of namespaceLabelSelector together, or all, but none of excludedNamespaces.
	Targets ResourceDistributionTargets `json:"targets"`
}

func (in *ResourceDistributionSpec) DeepCopyInto(out *ResourceDistributionSpec) {
	*out = *in
	in.Resource.DeepCopyInto(&out.Resource)
	if in.ResourceRef != nil {
		out.ResourceRef = new(ResourceDistributionResourceRef)
		in.ResourceRef.DeepCopyInto(out.ResourceRef)
	}
	in.Targets.DeepCopyInto(&out.Targets)
}

// ResourceDistributionStatusConditions: One condition.
type ResourceDistributionStatusConditions struct {
	// The namespaces that it is about, two hundred at most.
	FailedNamespace []string `json:"failedNamespace,omitempty"`
	// When the status last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// For people.
	Message string `json:"message,omitempty"`
	// Why, in one word or in the words of an error.
	Reason string `json:"reason,omitempty"`
	// True or False.
	Status string `json:"status,omitempty"`
	// Its type.
	Type string `json:"type"`
}

func (in *ResourceDistributionStatusConditions) DeepCopyInto(out *ResourceDistributionStatusConditions) {
	*out = *in
	if in.FailedNamespace != nil {
		out.FailedNamespace = make([]string, len(in.FailedNamespace))
		copy(out.FailedNamespace, in.FailedNamespace)
	}
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
}

// ResourceDistributionStatus: Where the copies are.
type ResourceDistributionStatus struct {
	// GetResourceFailed, CreateResourceFailed, UpdateResourceFailed, DeleteResourceFailed, ConflictOccurred and NamespaceNotExists, each with the namespaces that it is about; NamespaceRefused; ReferenceFailed, if there is a resourceRef; and Ready, Reconciling and Stalled.
	Conditions []ResourceDistributionStatusConditions `json:"conditions,omitempty"`
	// Namespaces that are to have a copy; those that refuse it do not count.
	Desired int32 `json:"desired"`
	// Namespaces that lack it, or whose copy is not as it should be.
	Failed int32 `json:"failed"`
	// The generation that was looked at last.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Namespaces whose copy is as it should be.
	Succeeded int32 `json:"succeeded"`
}

func (in *ResourceDistributionStatus) DeepCopyInto(out *ResourceDistributionStatus) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]ResourceDistributionStatusConditions, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
}

// SidecarSetContainersResourcesPolicyResourcesExprLimits: The sidecar's limits, from those of the containers.
type SidecarSetContainersResourcesPolicyResourcesExprLimits struct {
	// In the variable cpu: `max(cpu*50%, 50m)`, for example.
	Cpu string `json:"cpu,omitempty"`
	// In the variable memory: `200Mi`, for example.
	Memory string `json:"memory,omitempty"`
}

func (in *SidecarSetContainersResourcesPolicyResourcesExprLimits) DeepCopyInto(out *SidecarSetContainersResourcesPolicyResourcesExprLimits) {
	*out = *in
}

// SidecarSetContainersResourcesPolicyResourcesExprRequests: The sidecar's requests, from those of the containers.
type SidecarSetContainersResourcesPolicyResourcesExprRequests struct {
	// In the variable cpu: `max(cpu*50%, 50m)`, for example.
	Cpu string `json:"cpu,omitempty"`
	// In the variable memory: `200Mi`, for example.
	Memory string `json:"memory,omitempty"`
}

func (in *SidecarSetContainersResourcesPolicyResourcesExprRequests) DeepCopyInto(out *SidecarSetContainersResourcesPolicyResourcesExprRequests) {
	*out = *in
}

// SidecarSetContainersResourcesPolicyResourcesExpr: How the sidecar's limits and requests are computed from them.
type SidecarSetContainersResourcesPolicyResourcesExpr struct {
	// The sidecar's limits, from those of the containers.
	Limits *SidecarSetContainersResourcesPolicyResourcesExprLimits `json:"limits,omitempty"`
	// The sidecar's requests, from those of the containers.
	Requests *SidecarSetContainersResourcesPolicyResourcesExprRequests `json:"requests,omitempty"`
}

func (in *SidecarSetContainersResourcesPolicyResourcesExpr) DeepCopyInto(out *SidecarSetContainersResourcesPolicyResourcesExpr) {
	*out = *in
	if in.Limits != nil {
		out.Limits = new(SidecarSetContainersResourcesPolicyResourcesExprLimits)
		in.Limits.DeepCopyInto(out.Limits)
	}
	if in.Requests != nil {
		out.Requests = new(SidecarSetContainersResourcesPolicyResourcesExprRequests)
		in.Requests.DeepCopyInto(out.Requests)
	}
}

// SidecarSetContainersResourcesPolicy: Requests and limits that follow from those of the containers of the Pod.
type SidecarSetContainersResourcesPolicy struct {
	// How the sidecar's limits and requests are computed from them.
	ResourcesExpr SidecarSetContainersResourcesPolicyResourcesExpr `json:"resourcesExpr,omitempty"`
	// sum or max: how the values of several containers are combined.
	TargetContainersMode string `json:"targetContainersMode,omitempty"`
	// Which containers of the Pod count: a regular expression that fits a part of their names.
	TargetContainersNameRegex string `json:"targetContainersNameRegex,omitempty"`
}

func (in *SidecarSetContainersResourcesPolicy) DeepCopyInto(out *SidecarSetContainersResourcesPolicy) {
	*out = *in
	in.ResourcesExpr.DeepCopyInto(&out.ResourcesExpr)
}

// SidecarSetContainersShareVolumeDevicePolicy: Whether it gets the volume devices of the containers of the Pod.
type SidecarSetContainersShareVolumeDevicePolicy struct {
	// enabled or disabled (the default).
	Type string `json:"type,omitempty"`
}

func (in *SidecarSetContainersShareVolumeDevicePolicy) DeepCopyInto(out *SidecarSetContainersShareVolumeDevicePolicy) {
	*out = *in
}

// SidecarSetContainersShareVolumePolicy: Whether it mounts what the containers of the Pod mount.
type SidecarSetContainersShareVolumePolicy struct {
	// enabled or disabled (the default).
	Type string `json:"type,omitempty"`
}

func (in *SidecarSetContainersShareVolumePolicy) DeepCopyInto(out *SidecarSetContainersShareVolumePolicy) {
	*out = *in
}

// SidecarSetContainersTransferEnvSourceContainerNameFromFieldRef: A label or an annotation of the Pod.
type SidecarSetContainersTransferEnvSourceContainerNameFromFieldRef struct {
	// v1, the default.
	ApiVersion string `json:"apiVersion,omitempty"`
	// `metadata.labels['KEY']` or `metadata.annotations['KEY']`.
	FieldPath string `json:"fieldPath,omitempty"`
}

func (in *SidecarSetContainersTransferEnvSourceContainerNameFromFieldRef) DeepCopyInto(out *SidecarSetContainersTransferEnvSourceContainerNameFromFieldRef) {
	*out = *in
}

// SidecarSetContainersTransferEnvSourceContainerNameFrom: Where the Pod says the name of the container.
type SidecarSetContainersTransferEnvSourceContainerNameFrom struct {
	// A label or an annotation of the Pod.
	FieldRef *SidecarSetContainersTransferEnvSourceContainerNameFromFieldRef `json:"fieldRef,omitempty"`
}

func (in *SidecarSetContainersTransferEnvSourceContainerNameFrom) DeepCopyInto(out *SidecarSetContainersTransferEnvSourceContainerNameFrom) {
	*out = *in
	if in.FieldRef != nil {
		out.FieldRef = new(SidecarSetContainersTransferEnvSourceContainerNameFromFieldRef)
		in.FieldRef.DeepCopyInto(out.FieldRef)
	}
}

// SidecarSetContainersTransferEnv: Environment variables that are taken over from a container of the Pod.
type SidecarSetContainersTransferEnv struct {
	// Name of one variable.
	EnvName string `json:"envName,omitempty"`
	// Names of further ones.
	EnvNames []string `json:"envNames,omitempty"`
	// Name of the container.
	SourceContainerName string `json:"sourceContainerName,omitempty"`
	// Where the Pod says the name of the container.
	SourceContainerNameFrom *SidecarSetContainersTransferEnvSourceContainerNameFrom `json:"sourceContainerNameFrom,omitempty"`
}

func (in *SidecarSetContainersTransferEnv) DeepCopyInto(out *SidecarSetContainersTransferEnv) {
	*out = *in
	if in.EnvNames != nil {
		out.EnvNames = make([]string, len(in.EnvNames))
		copy(out.EnvNames, in.EnvNames)
	}
	if in.SourceContainerNameFrom != nil {
		out.SourceContainerNameFrom = new(SidecarSetContainersTransferEnvSourceContainerNameFrom)
		in.SourceContainerNameFrom.DeepCopyInto(out.SourceContainerNameFrom)
	}
}

// SidecarSetContainersUpgradeStrategy: How it gets to another image.
type SidecarSetContainersUpgradeStrategy struct {
	// The image of the idle one of the two containers.
	HotUpgradeEmptyImage string `json:"hotUpgradeEmptyImage,omitempty"`
	// ColdUpgrade (the default): it is restarted with the other image.
	UpgradeType string `json:"upgradeType,omitempty"`
}

func (in *SidecarSetContainersUpgradeStrategy) DeepCopyInto(out *SidecarSetContainersUpgradeStrategy) {
	*out = *in
}

// SidecarSetContainers: A container as a Pod has it, and how it gets into Pods.
type SidecarSetContainers struct {
	corev1.Container `json:",inline"`
	// Where it stands in Pods: BeforeAppContainer or AfterAppContainer.
	PodInjectPolicy *string `json:"podInjectPolicy,omitempty"`
	// Requests and limits that follow from those of the containers of the Pod.
	ResourcesPolicy *SidecarSetContainersResourcesPolicy `json:"resourcesPolicy,omitempty"`
	// Whether it gets the volume devices of the containers of the Pod.
	ShareVolumeDevicePolicy *SidecarSetContainersShareVolumeDevicePolicy `json:"shareVolumeDevicePolicy,omitempty"`
	// Whether it mounts what the containers of the Pod mount.
	ShareVolumePolicy *SidecarSetContainersShareVolumePolicy `json:"shareVolumePolicy,omitempty"`
	// Environment variables that it takes over from containers of the Pod.
	TransferEnv []SidecarSetContainersTransferEnv `json:"transferEnv,omitempty"`
	// How it gets to another image.
	UpgradeStrategy *SidecarSetContainersUpgradeStrategy `json:"upgradeStrategy,omitempty"`
}

func (in *SidecarSetContainers) DeepCopyInto(out *SidecarSetContainers) {
	*out = *in
	in.Container.DeepCopyInto(&out.Container)
	if in.PodInjectPolicy != nil {
		out.PodInjectPolicy = new(string)
		*out.PodInjectPolicy = *in.PodInjectPolicy
	}
	if in.ResourcesPolicy != nil {
		out.ResourcesPolicy = new(SidecarSetContainersResourcesPolicy)
		in.ResourcesPolicy.DeepCopyInto(out.ResourcesPolicy)
	}
	if in.ShareVolumeDevicePolicy != nil {
		out.ShareVolumeDevicePolicy = new(SidecarSetContainersShareVolumeDevicePolicy)
		in.ShareVolumeDevicePolicy.DeepCopyInto(out.ShareVolumeDevicePolicy)
	}
	if in.ShareVolumePolicy != nil {
		out.ShareVolumePolicy = new(SidecarSetContainersShareVolumePolicy)
		in.ShareVolumePolicy.DeepCopyInto(out.ShareVolumePolicy)
	}
	if in.TransferEnv != nil {
		out.TransferEnv = make([]SidecarSetContainersTransferEnv, len(in.TransferEnv))
		copy(out.TransferEnv, in.TransferEnv)
		for i1 := range in.TransferEnv {
			in.TransferEnv[i1].DeepCopyInto(&out.TransferEnv[i1])
		}
	}
	if in.UpgradeStrategy != nil {
		out.UpgradeStrategy = new(SidecarSetContainersUpgradeStrategy)
		in.UpgradeStrategy.DeepCopyInto(out.UpgradeStrategy)
	}
}

// SidecarSetInitContainersResourcesPolicyResourcesExprLimits: The sidecar's limits, from those of the containers.
type SidecarSetInitContainersResourcesPolicyResourcesExprLimits struct {
	// In the variable cpu: `max(cpu*50%, 50m)`, for example.
	Cpu string `json:"cpu,omitempty"`
	// In the variable memory: `200Mi`, for example.
	Memory string `json:"memory,omitempty"`
}

func (in *SidecarSetInitContainersResourcesPolicyResourcesExprLimits) DeepCopyInto(out *SidecarSetInitContainersResourcesPolicyResourcesExprLimits) {
	*out = *in
}

// SidecarSetInitContainersResourcesPolicyResourcesExprRequests: The sidecar's requests, from those of the containers.
type SidecarSetInitContainersResourcesPolicyResourcesExprRequests struct {
	// In the variable cpu: `max(cpu*50%, 50m)`, for example.
	Cpu string `json:"cpu,omitempty"`
	// In the variable memory: `200Mi`, for example.
	Memory string `json:"memory,omitempty"`
}

func (in *SidecarSetInitContainersResourcesPolicyResourcesExprRequests) DeepCopyInto(out *SidecarSetInitContainersResourcesPolicyResourcesExprRequests) {
	*out = *in
}

// SidecarSetInitContainersResourcesPolicyResourcesExpr: How the sidecar's limits and requests are computed from them.
type SidecarSetInitContainersResourcesPolicyResourcesExpr struct {
	// The sidecar's limits, from those of the containers.
	Limits *SidecarSetInitContainersResourcesPolicyResourcesExprLimits `json:"limits,omitempty"`
	// The sidecar's requests, from those of the containers.
	Requests *SidecarSetInitContainersResourcesPolicyResourcesExprRequests `json:"requests,omitempty"`
}

func (in *SidecarSetInitContainersResourcesPolicyResourcesExpr) DeepCopyInto(out *SidecarSetInitContainersResourcesPolicyResourcesExpr) {
	*out = *in
	if in.Limits != nil {
		out.Limits = new(SidecarSetInitContainersResourcesPolicyResourcesExprLimits)
		in.Limits.DeepCopyInto(out.Limits)
	}
	if in.Requests != nil {
		out.Requests = new(SidecarSetInitContainersResourcesPolicyResourcesExprRequests)
		in.Requests.DeepCopyInto(out.Requests)
	}
}

// SidecarSetInitContainersResourcesPolicy: Requests and limits that follow from those of the containers of the Pod.
type SidecarSetInitContainersResourcesPolicy struct {
	// How the sidecar's limits and requests are computed from them.
	ResourcesExpr SidecarSetInitContainersResourcesPolicyResourcesExpr `json:"resourcesExpr,omitempty"`
	// sum or max: how the values of several containers are combined.
	TargetContainersMode string `json:"targetContainersMode,omitempty"`
	// Which containers of the Pod count: a regular expression that fits a part of their names.
	TargetContainersNameRegex string `json:"targetContainersNameRegex,omitempty"`
}

func (in *SidecarSetInitContainersResourcesPolicy) DeepCopyInto(out *SidecarSetInitContainersResourcesPolicy) {
	*out = *in
	in.ResourcesExpr.DeepCopyInto(&out.ResourcesExpr)
}

// SidecarSetInitContainersShareVolumeDevicePolicy: Whether it gets the volume devices of the containers of the Pod.
type SidecarSetInitContainersShareVolumeDevicePolicy struct {
	// enabled or disabled (the default).
	Type string `json:"type,omitempty"`
}

func (in *SidecarSetInitContainersShareVolumeDevicePolicy) DeepCopyInto(out *SidecarSetInitContainersShareVolumeDevicePolicy) {
	*out = *in
}

// SidecarSetInitContainersShareVolumePolicy: Whether it mounts what the containers of the Pod mount.
type SidecarSetInitContainersShareVolumePolicy struct {
	// enabled or disabled (the default).
	Type string `json:"type,omitempty"`
}

func (in *SidecarSetInitContainersShareVolumePolicy) DeepCopyInto(out *SidecarSetInitContainersShareVolumePolicy) {
	*out = *in
}

// SidecarSetInitContainersTransferEnvSourceContainerNameFromFieldRef: A label or an annotation of the Pod.
type SidecarSetInitContainersTransferEnvSourceContainerNameFromFieldRef struct {
	// v1, the default.
	ApiVersion string `json:"apiVersion,omitempty"`
	// `metadata.labels['KEY']` or `metadata.annotations['KEY']`.
	FieldPath string `json:"fieldPath,omitempty"`
}

func (in *SidecarSetInitContainersTransferEnvSourceContainerNameFromFieldRef) DeepCopyInto(out *SidecarSetInitContainersTransferEnvSourceContainerNameFromFieldRef) {
	*out = *in
}

// SidecarSetInitContainersTransferEnvSourceContainerNameFrom: Where the Pod says the name of the container.
type SidecarSetInitContainersTransferEnvSourceContainerNameFrom struct {
	// A label or an annotation of the Pod.
	FieldRef *SidecarSetInitContainersTransferEnvSourceContainerNameFromFieldRef `json:"fieldRef,omitempty"`
}

func (in *SidecarSetInitContainersTransferEnvSourceContainerNameFrom) DeepCopyInto(out *SidecarSetInitContainersTransferEnvSourceContainerNameFrom) {
	*out = *in
	if in.FieldRef != nil {
		out.FieldRef = new(SidecarSetInitContainersTransferEnvSourceContainerNameFromFieldRef)
		in.FieldRef.DeepCopyInto(out.FieldRef)
	}
}

// SidecarSetInitContainersTransferEnv: Environment variables that are taken over from a container of the Pod.
type SidecarSetInitContainersTransferEnv struct {
	// Name of one variable.
	EnvName string `json:"envName,omitempty"`
	// Names of further ones.
	EnvNames []string `json:"envNames,omitempty"`
	// Name of the container.
	SourceContainerName string `json:"sourceContainerName,omitempty"`
	// Where the Pod says the name of the container.
	SourceContainerNameFrom *SidecarSetInitContainersTransferEnvSourceContainerNameFrom `json:"sourceContainerNameFrom,omitempty"`
}

func (in *SidecarSetInitContainersTransferEnv) DeepCopyInto(out *SidecarSetInitContainersTransferEnv) {
	*out = *in
	if in.EnvNames != nil {
		out.EnvNames = make([]string, len(in.EnvNames))
		copy(out.EnvNames, in.EnvNames)
	}
	if in.SourceContainerNameFrom != nil {
		out.SourceContainerNameFrom = new(SidecarSetInitContainersTransferEnvSourceContainerNameFrom)
		in.SourceContainerNameFrom.DeepCopyInto(out.SourceContainerNameFrom)
	}
}

// SidecarSetInitContainersUpgradeStrategy: How it gets to another image.
type SidecarSetInitContainersUpgradeStrategy struct {
	// The image of the idle one of the two containers.
	HotUpgradeEmptyImage string `json:"hotUpgradeEmptyImage,omitempty"`
	// ColdUpgrade (the default): it is restarted with the other image.
	UpgradeType string `json:"upgradeType,omitempty"`
}

func (in *SidecarSetInitContainersUpgradeStrategy) DeepCopyInto(out *SidecarSetInitContainersUpgradeStrategy) {
	*out = *in
}

// SidecarSetInitContainers: A container as a Pod has it, and how it gets into Pods.
type SidecarSetInitContainers struct {
	corev1.Container `json:",inline"`
	// Where it stands in Pods: BeforeAppContainer or AfterAppContainer.
	PodInjectPolicy *string `json:"podInjectPolicy,omitempty"`
	// Requests and limits that follow from those of the containers of the Pod.
	ResourcesPolicy *SidecarSetInitContainersResourcesPolicy `json:"resourcesPolicy,omitempty"`
	// Whether it gets the volume devices of the containers of the Pod.
	ShareVolumeDevicePolicy *SidecarSetInitContainersShareVolumeDevicePolicy `json:"shareVolumeDevicePolicy,omitempty"`
	// Whether it mounts what the containers of the Pod mount.
	ShareVolumePolicy *SidecarSetInitContainersShareVolumePolicy `json:"shareVolumePolicy,omitempty"`
	// Environment variables that it takes over from containers of the Pod.
	TransferEnv []SidecarSetInitContainersTransferEnv `json:"transferEnv,omitempty"`
	// How it gets to another image.
	UpgradeStrategy *SidecarSetInitContainersUpgradeStrategy `json:"upgradeStrategy,omitempty"`
}

func (in *SidecarSetInitContainers) DeepCopyInto(out *SidecarSetInitContainers) {
	*out = *in
	in.Container.DeepCopyInto(&out.Container)
	if in.PodInjectPolicy != nil {
		out.PodInjectPolicy = new(string)
		*out.PodInjectPolicy = *in.PodInjectPolicy
	}
	if in.ResourcesPolicy != nil {
		out.ResourcesPolicy = new(SidecarSetInitContainersResourcesPolicy)
		in.ResourcesPolicy.DeepCopyInto(out.ResourcesPolicy)
	}
	if in.ShareVolumeDevicePolicy != nil {
		out.ShareVolumeDevicePolicy = new(SidecarSetInitContainersShareVolumeDevicePolicy)
		in.ShareVolumeDevicePolicy.DeepCopyInto(out.ShareVolumeDevicePolicy)
	}
	if in.ShareVolumePolicy != nil {
		out.ShareVolumePolicy = new(SidecarSetInitContainersShareVolumePolicy)
		in.ShareVolumePolicy.DeepCopyInto(out.ShareVolumePolicy)
	}
	if in.TransferEnv != nil {
		out.TransferEnv = make([]SidecarSetInitContainersTransferEnv, len(in.TransferEnv))
		copy(out.TransferEnv, in.TransferEnv)
		for i1 := range in.TransferEnv {
			in.TransferEnv[i1].DeepCopyInto(&out.TransferEnv[i1])
		}
	}
	if in.UpgradeStrategy != nil {
		out.UpgradeStrategy = new(SidecarSetInitContainersUpgradeStrategy)
		in.UpgradeStrategy.DeepCopyInto(out.UpgradeStrategy)
	}
}

// SidecarSetInjectionStrategyRevision: A former state of the SidecarSet, for new Pods.
type SidecarSetInjectionStrategyRevision struct {
	// By its customVersion; the latest one with it.
	CustomVersion *string `json:"customVersion,omitempty"`
	// Always (the default): every new Pod gets it.
	Policy string `json:"policy,omitempty"`
	// By the name of its ControllerRevision.
	RevisionName *string `json:"revisionName,omitempty"`
}

func (in *SidecarSetInjectionStrategyRevision) DeepCopyInto(out *SidecarSetInjectionStrategyRevision) {
	*out = *in
	if in.CustomVersion != nil {
		out.CustomVersion = new(string)
		*out.CustomVersion = *in.CustomVersion
	}
	if in.RevisionName != nil {
		out.RevisionName = new(string)
		*out.RevisionName = *in.RevisionName
	}
}

// SidecarSetInjectionStrategy: What new Pods get.
type SidecarSetInjectionStrategy struct {
	// Short for revision.customVersion.
	CustomVersion *string `json:"customVersion,omitempty"`
	// true: new Pods get nothing.
	Paused bool `json:"paused,omitempty"`
	// A former state of the SidecarSet, for new Pods.
	Revision *SidecarSetInjectionStrategyRevision `json:"revision,omitempty"`
	// Short for revision.revisionName.
	RevisionName *string `json:"revisionName,omitempty"`
}

func (in *SidecarSetInjectionStrategy) DeepCopyInto(out *SidecarSetInjectionStrategy) {
	*out = *in
	if in.CustomVersion != nil {
		out.CustomVersion = new(string)
		*out.CustomVersion = *in.CustomVersion
	}
	if in.Revision != nil {
		out.Revision = new(SidecarSetInjectionStrategyRevision)
		in.Revision.DeepCopyInto(out.Revision)
	}
	if in.RevisionName != nil {
		out.RevisionName = new(string)
		*out.RevisionName = *in.RevisionName
	}
}

// SidecarSetPatchPodMetadata: Annotations that Pods get.
type SidecarSetPatchPodMetadata struct {
	// Keys and values.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Retain (the default): only what a new Pod does not have.
	PatchPolicy string `json:"patchPolicy,omitempty"`
}

func (in *SidecarSetPatchPodMetadata) DeepCopyInto(out *SidecarSetPatchPodMetadata) {
	*out = *in
	if in.Annotations != nil {
		out.Annotations = make(map[string]string, len(in.Annotations))
		for key, value1 := range in.Annotations {
			out.Annotations[key] = value1
		}
	}
}

// SidecarSetUpdateStrategyPriorityStrategyOrderPriority: A label whose value gives the order.
type SidecarSetUpdateStrategyPriorityStrategyOrderPriority struct {
	// Its key.
	OrderedKey string `json:"orderedKey"`
}

func (in *SidecarSetUpdateStrategyPriorityStrategyOrderPriority) DeepCopyInto(out *SidecarSetUpdateStrategyPriorityStrategyOrderPriority) {
	*out = *in
}

// SidecarSetUpdateStrategyPriorityStrategyWeightPriority: A weight for the Pods that a selector matches.
type SidecarSetUpdateStrategyPriorityStrategyWeightPriority struct {
	// The Pods.
	MatchSelector metav1.LabelSelector `json:"matchSelector"`
	// From 0 to 100.
	Weight int32 `json:"weight"`
}

func (in *SidecarSetUpdateStrategyPriorityStrategyWeightPriority) DeepCopyInto(out *SidecarSetUpdateStrategyPriorityStrategyWeightPriority) {
	*out = *in
	in.MatchSelector.DeepCopyInto(&out.MatchSelector)
}

// SidecarSetUpdateStrategyPriorityStrategy: Which Pods are updated first.
type SidecarSetUpdateStrategyPriorityStrategy struct {
	// By the number at the end of a label's value, larger first.
	OrderPriority []SidecarSetUpdateStrategyPriorityStrategyOrderPriority `json:"orderPriority,omitempty"`
	// By the sum of the weights of the selectors that match, larger first.
	WeightPriority []SidecarSetUpdateStrategyPriorityStrategyWeightPriority `json:"weightPriority,omitempty"`
}

func (in *SidecarSetUpdateStrategyPriorityStrategy) DeepCopyInto(out *SidecarSetUpdateStrategyPriorityStrategy) {
	*out = *in
	if in.OrderPriority != nil {
		out.OrderPriority = make([]SidecarSetUpdateStrategyPriorityStrategyOrderPriority, len(in.OrderPriority))
		copy(out.OrderPriority, in.OrderPriority)
		for i1 := range in.OrderPriority {
			in.OrderPriority[i1].DeepCopyInto(&out.OrderPriority[i1])
		}
	}
	if in.WeightPriority != nil {
		out.WeightPriority = make([]SidecarSetUpdateStrategyPriorityStrategyWeightPriority, len(in.WeightPriority))
		copy(out.WeightPriority, in.WeightPriority)
		for i1 := range in.WeightPriority {
			in.WeightPriority[i1].DeepCopyInto(&out.WeightPriority[i1])
		}
	}
}

// SidecarSetUpdateStrategyScatterStrategy: Pods to spread over the whole roll-out.
type SidecarSetUpdateStrategyScatterStrategy struct {
	// Key of a label.
	Key string `json:"key"`
	// Its value.
	Value string `json:"value"`
}

func (in *SidecarSetUpdateStrategyScatterStrategy) DeepCopyInto(out *SidecarSetUpdateStrategyScatterStrategy) {
	*out = *in
}

// SidecarSetUpdateStrategy: How Pods that are there get to another image.
type SidecarSetUpdateStrategy struct {
	// How many Pods may be unavailable while others are updated: a number, or a percentage rounded up.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// How many Pods are kept as they are: a number, or a percentage rounded up.
	Partition *intstr.IntOrString `json:"partition,omitempty"`
	// true: no Pod is updated.
	Paused bool `json:"paused,omitempty"`
	// Which Pods are updated first.
	PriorityStrategy *SidecarSetUpdateStrategyPriorityStrategy `json:"priorityStrategy,omitempty"`
	// Labels whose Pods are spread over the whole roll-out.
	ScatterStrategy []SidecarSetUpdateStrategyScatterStrategy `json:"scatterStrategy,omitempty"`
	// Only Pods with these labels are updated.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// RollingUpdate (the default): in place.
	Type string `json:"type,omitempty"`
}

func (in *SidecarSetUpdateStrategy) DeepCopyInto(out *SidecarSetUpdateStrategy) {
	*out = *in
	if in.MaxUnavailable != nil {
		out.MaxUnavailable = new(intstr.IntOrString)
		*out.MaxUnavailable = *in.MaxUnavailable
	}
	if in.Partition != nil {
		out.Partition = new(intstr.IntOrString)
		*out.Partition = *in.Partition
	}
	if in.PriorityStrategy != nil {
		out.PriorityStrategy = new(SidecarSetUpdateStrategyPriorityStrategy)
		in.PriorityStrategy.DeepCopyInto(out.PriorityStrategy)
	}
	if in.ScatterStrategy != nil {
		out.ScatterStrategy = make([]SidecarSetUpdateStrategyScatterStrategy, len(in.ScatterStrategy))
		copy(out.ScatterStrategy, in.ScatterStrategy)
		for i1 := range in.ScatterStrategy {
			in.ScatterStrategy[i1].DeepCopyInto(&out.ScatterStrategy[i1])
		}
	}
	if in.Selector != nil {
		out.Selector = new(metav1.LabelSelector)
		in.Selector.DeepCopyInto(out.Selector)
	}
}

// SidecarSetSpec: What a SidecarSet should be.
type SidecarSetSpec struct {
	// Containers to put into Pods.
	Containers []SidecarSetContainers `json:"containers,omitempty"`
	// Secrets for the registries of the images, in the namespaces of the Pods.
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// Init containers to put into Pods.
	InitContainers []SidecarSetInitContainers `json:"initContainers,omitempty"`
	// What new Pods get.
	InjectionStrategy SidecarSetInjectionStrategy `json:"injectionStrategy,omitempty"`
	// Only Pods of this namespace.
	Namespace string `json:"namespace,omitempty"`
	// Only Pods of namespaces with these labels.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// Annotations that the Pods get.
	PatchPodMetadata []SidecarSetPatchPodMetadata `json:"patchPodMetadata,omitempty"`
	// How many revisions are kept in total.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// The Pods that get the containers, by their labels.
	Selector metav1.LabelSelector `json:"selector,omitempty"`
	// How Pods that are there get to another image.
	UpdateStrategy SidecarSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// Volumes that they mount, as a Pod has them.
	Volumes []corev1.Volume `json:"volumes,omitempty"`
}

func (in *SidecarSetSpec) DeepCopyInto(out *SidecarSetSpec) {
	*out = *in
	if in.Containers != nil {
		out.Containers = make([]SidecarSetContainers, len(in.Containers))
		copy(out.Containers, in.Containers)
		for i1 := range in.Containers {
			in.Containers[i1].DeepCopyInto(&out.Containers[i1])
		}
	}
	if in.ImagePullSecrets != nil {
		out.ImagePullSecrets = make([]corev1.LocalObjectReference, len(in.ImagePullSecrets))
		copy(out.ImagePullSecrets, in.ImagePullSecrets)
		for i1 := range in.ImagePullSecrets {
			in.ImagePullSecrets[i1].DeepCopyInto(&out.ImagePullSecrets[i1])
		}
	}
	if in.InitContainers != nil {
		out.InitContainers = make([]SidecarSetInitContainers, len(in.InitContainers))
		copy(out.InitContainers, in.InitContainers)
		for i1 := range in.InitContainers {
			in.InitContainers[i1].DeepCopyInto(&out.InitContainers[i1])
		}
	}
	in.InjectionStrategy.DeepCopyInto(&out.InjectionStrategy)
	if in.NamespaceSelector != nil {
		out.NamespaceSelector = new(metav1.LabelSelector)
		in.NamespaceSelector.DeepCopyInto(out.NamespaceSelector)
	}
	if in.PatchPodMetadata != nil {
		out.PatchPodMetadata = make([]SidecarSetPatchPodMetadata, len(in.PatchPodMetadata))
		copy(out.PatchPodMetadata, in.PatchPodMetadata)
		for i1 := range in.PatchPodMetadata {
			in.PatchPodMetadata[i1].DeepCopyInto(&out.PatchPodMetadata[i1])
		}
	}
	if in.RevisionHistoryLimit != nil {
		out.RevisionHistoryLimit = new(int32)
		*out.RevisionHistoryLimit = *in.RevisionHistoryLimit
	}
	in.Selector.DeepCopyInto(&out.Selector)
	in.UpdateStrategy.DeepCopyInto(&out.UpdateStrategy)
	if in.Volumes != nil {
		out.Volumes = make([]corev1.Volume, len(in.Volumes))
		copy(out.Volumes, in.Volumes)
		for i1 := range in.Volumes {
			in.Volumes[i1].DeepCopyInto(&out.Volumes[i1])
		}
	}
}

// SidecarSetStatus: What a SidecarSet is.
type SidecarSetStatus struct {
	// How often the name of a new revision was taken.
	CollisionCount int32 `json:"collisionCount"`
	// Ready, Reconciling and Stalled, as kstatus reads them; Upgradable.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The name of the latest ControllerRevision, in the namespace of Kruise.
	LatestRevision string `json:"latestRevision,omitempty"`
	// Pods that have its containers.
	MatchedPods int32 `json:"matchedPods"`
	// Of outdatedPods, those that cannot be updated in place: only another Pod in their place helps.
	NotUpgradablePods int32 `json:"notUpgradablePods"`
	// The generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Of matchedPods, those that do not have its containers as they are now.
	OutdatedPods int32 `json:"outdatedPods"`
	// Of matchedPods, those that are ready and run the images of their spec.
	ReadyPods int32 `json:"readyPods"`
	// Pods that its selectors match and that do not have its containers: they are older than it, or admission could not put them in.
	UninjectedPods int32 `json:"uninjectedPods"`
	// Of them, those that have them as they are now.
	UpdatedPods int32 `json:"updatedPods"`
	// Of updatedPods, those that are ready and run the images of their spec.
	UpdatedReadyPods int32 `json:"updatedReadyPods"`
}

func (in *SidecarSetStatus) DeepCopyInto(out *SidecarSetStatus) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
}

// StatefulSetLifecycleInPlaceUpdate: While any part of it is on a Pod, the Pod is not updated in place; after the update all of it has to be put back before the Pod counts as available.
type StatefulSetLifecycleInPlaceUpdate struct {
	// Finalizers whose presence means "hooked".
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// Labels with the value that means "hooked".
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// Whether the Pod is made NotReady while it waits.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

func (in *StatefulSetLifecycleInPlaceUpdate) DeepCopyInto(out *StatefulSetLifecycleInPlaceUpdate) {
	*out = *in
	if in.FinalizersHandler != nil {
		out.FinalizersHandler = make([]string, len(in.FinalizersHandler))
		copy(out.FinalizersHandler, in.FinalizersHandler)
	}
	if in.LabelsHandler != nil {
		out.LabelsHandler = make(map[string]string, len(in.LabelsHandler))
		for key, value1 := range in.LabelsHandler {
			out.LabelsHandler[key] = value1
		}
	}
}

// StatefulSetLifecyclePreDelete: While any part of it is on a Pod, the Pod is not deleted.
type StatefulSetLifecyclePreDelete struct {
	// Finalizers whose presence means "hooked".
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// Labels with the value that means "hooked".
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// Whether the Pod is made NotReady while it waits.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

func (in *StatefulSetLifecyclePreDelete) DeepCopyInto(out *StatefulSetLifecyclePreDelete) {
	*out = *in
	if in.FinalizersHandler != nil {
		out.FinalizersHandler = make([]string, len(in.FinalizersHandler))
		copy(out.FinalizersHandler, in.FinalizersHandler)
	}
	if in.LabelsHandler != nil {
		out.LabelsHandler = make(map[string]string, len(in.LabelsHandler))
		for key, value1 := range in.LabelsHandler {
			out.LabelsHandler[key] = value1
		}
	}
}

// StatefulSetLifecyclePreNormal: A new Pod counts as available only when all of it is on the Pod.
type StatefulSetLifecyclePreNormal struct {
	// Finalizers whose presence means "hooked".
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// Labels with the value that means "hooked".
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// Whether the Pod is made NotReady while it waits.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

func (in *StatefulSetLifecyclePreNormal) DeepCopyInto(out *StatefulSetLifecyclePreNormal) {
	*out = *in
	if in.FinalizersHandler != nil {
		out.FinalizersHandler = make([]string, len(in.FinalizersHandler))
		copy(out.FinalizersHandler, in.FinalizersHandler)
	}
	if in.LabelsHandler != nil {
		out.LabelsHandler = make(map[string]string, len(in.LabelsHandler))
		for key, value1 := range in.LabelsHandler {
			out.LabelsHandler[key] = value1
		}
	}
}

// StatefulSetLifecycle: Hooks with which another controller holds up the deletion and the update of a Pod.
type StatefulSetLifecycle struct {
	// While any part of it is on a Pod, the Pod is not updated in place; after the update all of it has to be put back before the Pod counts as available.
	InPlaceUpdate *StatefulSetLifecycleInPlaceUpdate `json:"inPlaceUpdate,omitempty"`
	// While any part of it is on a Pod, the Pod is not deleted.
	PreDelete *StatefulSetLifecyclePreDelete `json:"preDelete,omitempty"`
	// A new Pod counts as available only when all of it is on the Pod.
	PreNormal *StatefulSetLifecyclePreNormal `json:"preNormal,omitempty"`
}

func (in *StatefulSetLifecycle) DeepCopyInto(out *StatefulSetLifecycle) {
	*out = *in
	if in.InPlaceUpdate != nil {
		out.InPlaceUpdate = new(StatefulSetLifecycleInPlaceUpdate)
		in.InPlaceUpdate.DeepCopyInto(out.InPlaceUpdate)
	}
	if in.PreDelete != nil {
		out.PreDelete = new(StatefulSetLifecyclePreDelete)
		in.PreDelete.DeepCopyInto(out.PreDelete)
	}
	if in.PreNormal != nil {
		out.PreNormal = new(StatefulSetLifecyclePreNormal)
		in.PreNormal.DeepCopyInto(out.PreNormal)
	}
}

// StatefulSetOrdinals: Where the ordinals begin.
type StatefulSetOrdinals struct {
	// The first ordinal, 0 or more.
	Start int32 `json:"start,omitempty"`
}

func (in *StatefulSetOrdinals) DeepCopyInto(out *StatefulSetOrdinals) {
	*out = *in
}

// StatefulSetPersistentVolumeClaimRetentionPolicy: When claims are deleted.
type StatefulSetPersistentVolumeClaimRetentionPolicy struct {
	// When the StatefulSet is deleted: Retain (the default) or Delete.
	WhenDeleted string `json:"whenDeleted,omitempty"`
	// When the ordinal of a claim is not wanted any more: Retain (the default) or Delete.
	WhenScaled string `json:"whenScaled,omitempty"`
}

func (in *StatefulSetPersistentVolumeClaimRetentionPolicy) DeepCopyInto(out *StatefulSetPersistentVolumeClaimRetentionPolicy) {
	*out = *in
}

// StatefulSetUpdateStrategyRollingUpdateInPlaceUpdateStrategy: How an update in place is done.
type StatefulSetUpdateStrategyRollingUpdateInPlaceUpdateStrategy struct {
	// Seconds between making the Pod NotReady and changing it.
	GracePeriodSeconds int32 `json:"gracePeriodSeconds,omitempty"`
}

func (in *StatefulSetUpdateStrategyRollingUpdateInPlaceUpdateStrategy) DeepCopyInto(out *StatefulSetUpdateStrategyRollingUpdateInPlaceUpdateStrategy) {
	*out = *in
}

// StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyOrderPriority: A label whose value gives the order.
type StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyOrderPriority struct {
	// Its key.
	OrderedKey string `json:"orderedKey"`
}

func (in *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyOrderPriority) DeepCopyInto(out *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyOrderPriority) {
	*out = *in
}

// StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyWeightPriority: A weight for the Pods that a selector matches.
type StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyWeightPriority struct {
	// The Pods.
	MatchSelector metav1.LabelSelector `json:"matchSelector"`
	// From 0 to 100.
	Weight int32 `json:"weight"`
}

func (in *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyWeightPriority) DeepCopyInto(out *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyWeightPriority) {
	*out = *in
	in.MatchSelector.DeepCopyInto(&out.MatchSelector)
}

// StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategy: Which Pods are updated first.
type StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategy struct {
	// By the number at the end of a label's value, larger first.
	OrderPriority []StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyOrderPriority `json:"orderPriority,omitempty"`
	// By the sum of the weights of the selectors that match, larger first.
	WeightPriority []StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyWeightPriority `json:"weightPriority,omitempty"`
}

func (in *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategy) DeepCopyInto(out *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategy) {
	*out = *in
	if in.OrderPriority != nil {
		out.OrderPriority = make([]StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyOrderPriority, len(in.OrderPriority))
		copy(out.OrderPriority, in.OrderPriority)
		for i1 := range in.OrderPriority {
			in.OrderPriority[i1].DeepCopyInto(&out.OrderPriority[i1])
		}
	}
	if in.WeightPriority != nil {
		out.WeightPriority = make([]StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategyWeightPriority, len(in.WeightPriority))
		copy(out.WeightPriority, in.WeightPriority)
		for i1 := range in.WeightPriority {
			in.WeightPriority[i1].DeepCopyInto(&out.WeightPriority[i1])
		}
	}
}

// StatefulSetUpdateStrategyRollingUpdateUnorderedUpdate: Which Pods are updated first, instead of those with the highest ordinals.
type StatefulSetUpdateStrategyRollingUpdateUnorderedUpdate struct {
	// Which Pods are updated first.
	PriorityStrategy *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategy `json:"priorityStrategy,omitempty"`
}

func (in *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdate) DeepCopyInto(out *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdate) {
	*out = *in
	if in.PriorityStrategy != nil {
		out.PriorityStrategy = new(StatefulSetUpdateStrategyRollingUpdateUnorderedUpdatePriorityStrategy)
		in.PriorityStrategy.DeepCopyInto(out.PriorityStrategy)
	}
}

// StatefulSetUpdateStrategyRollingUpdate: How a rolling update is done.
type StatefulSetUpdateStrategyRollingUpdate struct {
	// How an update in place is done.
	InPlaceUpdateStrategy *StatefulSetUpdateStrategyRollingUpdateInPlaceUpdateStrategy `json:"inPlaceUpdateStrategy,omitempty"`
	// How many Pods may be unavailable during an update: a number, or a percentage of replicas rounded down, at least 1.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Seconds that a Pod has to be ready before it counts as available: 0 to 300.
	MinReadySeconds *int32 `json:"minReadySeconds,omitempty"`
	// How many Pods are kept on the old revision, those with the lowest ordinals: a number, or a percentage of replicas rounded up.
	Partition *intstr.IntOrString `json:"partition,omitempty"`
	// true: no Pod is updated.
	Paused bool `json:"paused,omitempty"`
	// ReCreate (the default), InPlaceIfPossible or InPlaceOnly.
	PodUpdatePolicy string `json:"podUpdatePolicy,omitempty"`
	// Which Pods are updated first, instead of those with the highest ordinals.
	UnorderedUpdate *StatefulSetUpdateStrategyRollingUpdateUnorderedUpdate `json:"unorderedUpdate,omitempty"`
}

func (in *StatefulSetUpdateStrategyRollingUpdate) DeepCopyInto(out *StatefulSetUpdateStrategyRollingUpdate) {
	*out = *in
	if in.InPlaceUpdateStrategy != nil {
		out.InPlaceUpdateStrategy = new(StatefulSetUpdateStrategyRollingUpdateInPlaceUpdateStrategy)
		in.InPlaceUpdateStrategy.DeepCopyInto(out.InPlaceUpdateStrategy)
	}
	if in.MaxUnavailable != nil {
		out.MaxUnavailable = new(intstr.IntOrString)
		*out.MaxUnavailable = *in.MaxUnavailable
	}
	if in.MinReadySeconds != nil {
		out.MinReadySeconds = new(int32)
		*out.MinReadySeconds = *in.MinReadySeconds
	}
	if in.Partition != nil {
		out.Partition = new(intstr.IntOrString)
		*out.Partition = *in.Partition
	}
	if in.UnorderedUpdate != nil {
		out.UnorderedUpdate = new(StatefulSetUpdateStrategyRollingUpdateUnorderedUpdate)
		in.UnorderedUpdate.DeepCopyInto(out.UnorderedUpdate)
	}
}

// StatefulSetUpdateStrategy: How Pods get to a new revision.
type StatefulSetUpdateStrategy struct {
	// How a rolling update is done.
	RollingUpdate *StatefulSetUpdateStrategyRollingUpdate `json:"rollingUpdate,omitempty"`
	// RollingUpdate (the default) or OnDelete.
	Type string `json:"type,omitempty"`
}

func (in *StatefulSetUpdateStrategy) DeepCopyInto(out *StatefulSetUpdateStrategy) {
	*out = *in
	if in.RollingUpdate != nil {
		out.RollingUpdate = new(StatefulSetUpdateStrategyRollingUpdate)
		in.RollingUpdate.DeepCopyInto(out.RollingUpdate)
	}
}

// StatefulSetVolumeClaimUpdateStrategy: What a change of volumeClaimTemplates does to claims that are there.
type StatefulSetVolumeClaimUpdateStrategy struct {
	// OnDelete (the default): only claims that are created later follow the template.
	Type string `json:"type,omitempty"`
}

func (in *StatefulSetVolumeClaimUpdateStrategy) DeepCopyInto(out *StatefulSetVolumeClaimUpdateStrategy) {
	*out = *in
}

// StatefulSetSpec: What a StatefulSet should be.
type StatefulSetSpec struct {
	// Hooks with which another controller holds up the deletion and the update of a Pod.
	Lifecycle *StatefulSetLifecycle `json:"lifecycle,omitempty"`
	// Where the ordinals begin.
	Ordinals *StatefulSetOrdinals `json:"ordinals,omitempty"`
	// When claims are deleted.
	PersistentVolumeClaimRetentionPolicy *StatefulSetPersistentVolumeClaimRetentionPolicy `json:"persistentVolumeClaimRetentionPolicy,omitempty"`
	// OrderedReady (the default): one Pod after the other, each available before the next.
	PodManagementPolicy string `json:"podManagementPolicy,omitempty"`
	// The desired number of Pods.
	Replicas *int32 `json:"replicas,omitempty"`
	// Ordinals that no Pod gets: numbers, or ranges such as "3-7", both ends included.
	ReserveOrdinals []intstr.IntOrString `json:"reserveOrdinals,omitempty"`
	// How many revisions that no Pod has are kept.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// The Pods that belong to the StatefulSet, by their labels.
	Selector metav1.LabelSelector `json:"selector"`
	// The Service that gives the Pods their host names.
	ServiceName string `json:"serviceName,omitempty"`
	// The Pod that is made.
	Template corev1.PodTemplateSpec `json:"template"`
	// How Pods get to a new revision.
	UpdateStrategy StatefulSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// Claims that every ordinal gets a copy of, named TEMPLATE-STATEFULSET-ORDINAL.
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates,omitempty"`
	// What a change of volumeClaimTemplates does to claims that are there.
	VolumeClaimUpdateStrategy *StatefulSetVolumeClaimUpdateStrategy `json:"volumeClaimUpdateStrategy,omitempty"`
}

func (in *StatefulSetSpec) DeepCopyInto(out *StatefulSetSpec) {
	*out = *in
	if in.Lifecycle != nil {
		out.Lifecycle = new(StatefulSetLifecycle)
		in.Lifecycle.DeepCopyInto(out.Lifecycle)
	}
	if in.Ordinals != nil {
		out.Ordinals = new(StatefulSetOrdinals)
		in.Ordinals.DeepCopyInto(out.Ordinals)
	}
	if in.PersistentVolumeClaimRetentionPolicy != nil {
		out.PersistentVolumeClaimRetentionPolicy = new(StatefulSetPersistentVolumeClaimRetentionPolicy)
		in.PersistentVolumeClaimRetentionPolicy.DeepCopyInto(out.PersistentVolumeClaimRetentionPolicy)
	}
	if in.Replicas != nil {
		out.Replicas = new(int32)
		*out.Replicas = *in.Replicas
	}
	if in.ReserveOrdinals != nil {
		out.ReserveOrdinals = make([]intstr.IntOrString, len(in.ReserveOrdinals))
		copy(out.ReserveOrdinals, in.ReserveOrdinals)
	}
	if in.RevisionHistoryLimit != nil {
		out.RevisionHistoryLimit = new(int32)
		*out.RevisionHistoryLimit = *in.RevisionHistoryLimit
	}
	in.Selector.DeepCopyInto(&out.Selector)
	in.Template.DeepCopyInto(&out.Template)
	in.UpdateStrategy.DeepCopyInto(&out.UpdateStrategy)
	if in.VolumeClaimTemplates != nil {
		out.VolumeClaimTemplates = make([]corev1.PersistentVolumeClaim, len(in.VolumeClaimTemplates))
		copy(out.VolumeClaimTemplates, in.VolumeClaimTemplates)
		for i1 := range in.VolumeClaimTemplates {
			in.VolumeClaimTemplates[i1].DeepCopyInto(&out.VolumeClaimTemplates[i1])
		}
	}
	if in.VolumeClaimUpdateStrategy != nil {
		out.VolumeClaimUpdateStrategy = new(StatefulSetVolumeClaimUpdateStrategy)
		in.VolumeClaimUpdateStrategy.DeepCopyInto(out.VolumeClaimUpdateStrategy)
	}
}

// StatefulSetStatusConditions: One observation.
type StatefulSetStatusConditions struct {
	// When the status last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// In words.
	Message string `json:"message,omitempty"`
	// One word.
	Reason string `json:"reason,omitempty"`
	// True, False or Unknown.
	Status string `json:"status,omitempty"`
	// Ready, Reconciling, Stalled, FailedCreatePod or FailedUpdatePod.
	Type string `json:"type,omitempty"`
}

func (in *StatefulSetStatusConditions) DeepCopyInto(out *StatefulSetStatusConditions) {
	*out = *in
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
}

// StatefulSetStatusVolumeClaims: The claims of one claim template.
type StatefulSetStatusVolumeClaims struct {
	// Of them, those whose volume has the size that they ask for.
	CompatibleReadyReplicas int32 `json:"compatibleReadyReplicas"`
	// Claims of Pods that there are which ask for what the template asks, or more.
	CompatibleReplicas int32 `json:"compatibleReplicas"`
	// Name of the claim template.
	VolumeClaimName string `json:"volumeClaimName,omitempty"`
}

func (in *StatefulSetStatusVolumeClaims) DeepCopyInto(out *StatefulSetStatusVolumeClaims) {
	*out = *in
}

// StatefulSetStatus: What a StatefulSet is.
type StatefulSetStatus struct {
	// Pods that have been ready for minReadySeconds and are in service.
	AvailableReplicas int32 `json:"availableReplicas"`
	// How often the name of a new revision was taken.
	CollisionCount int32 `json:"collisionCount"`
	// Ready, Reconciling and Stalled, as kstatus reads them; FailedCreatePod and FailedUpdatePod.
	Conditions []StatefulSetStatusConditions `json:"conditions,omitempty"`
	// Pods on the current revision.
	CurrentReplicas int32 `json:"currentReplicas"`
	// The revision that Pods were on before.
	CurrentRevision string `json:"currentRevision,omitempty"`
	// The selector as text, for the scale subresource.
	LabelSelector string `json:"labelSelector,omitempty"`
	// The generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Pods that are ready.
	ReadyReplicas int32 `json:"readyReplicas"`
	// Pods that there are.
	Replicas int32 `json:"replicas"`
	// The revision that Pods are updated to.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// Of them, available.
	UpdatedAvailableReplicas int32 `json:"updatedAvailableReplicas"`
	// Of them, ready.
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas"`
	// Pods on the update revision.
	UpdatedReplicas int32 `json:"updatedReplicas"`
	// How many claims fit their template, for each claim template in its order.
	VolumeClaims []StatefulSetStatusVolumeClaims `json:"volumeClaims,omitempty"`
}

func (in *StatefulSetStatus) DeepCopyInto(out *StatefulSetStatus) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]StatefulSetStatusConditions, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.VolumeClaims != nil {
		out.VolumeClaims = make([]StatefulSetStatusVolumeClaims, len(in.VolumeClaims))
		copy(out.VolumeClaims, in.VolumeClaims)
		for i1 := range in.VolumeClaims {
			in.VolumeClaims[i1].DeepCopyInto(&out.VolumeClaims[i1])
		}
	}
}

// UnitedDeploymentTemplate: The workload that is made for each subset: exactly one of statefulSetTemplate, advancedStatefulSetTemplate, cloneSetTemplate and deploymentTemplate, with its metadata and spec.
type UnitedDeploymentTemplate struct {
	// Metadata and spec of the StatefulSet (apps.kruise.io) of each subset.
	AdvancedStatefulSetTemplate *StatefulSetTemplate `json:"advancedStatefulSetTemplate,omitempty"`
	// Metadata and spec of the CloneSet of each subset.
	CloneSetTemplate *CloneSetTemplate `json:"cloneSetTemplate,omitempty"`
	// Metadata and spec of the Deployment of each subset.
	DeploymentTemplate *DeploymentTemplate `json:"deploymentTemplate,omitempty"`
	// Metadata and spec of the StatefulSet (apps/v1) of each subset.
	StatefulSetTemplate *BuiltInStatefulSetTemplate `json:"statefulSetTemplate,omitempty"`
}

func (in *UnitedDeploymentTemplate) DeepCopyInto(out *UnitedDeploymentTemplate) {
	*out = *in
	if in.AdvancedStatefulSetTemplate != nil {
		out.AdvancedStatefulSetTemplate = new(StatefulSetTemplate)
		in.AdvancedStatefulSetTemplate.DeepCopyInto(out.AdvancedStatefulSetTemplate)
	}
	if in.CloneSetTemplate != nil {
		out.CloneSetTemplate = new(CloneSetTemplate)
		in.CloneSetTemplate.DeepCopyInto(out.CloneSetTemplate)
	}
	if in.DeploymentTemplate != nil {
		out.DeploymentTemplate = new(DeploymentTemplate)
		in.DeploymentTemplate.DeepCopyInto(out.DeploymentTemplate)
	}
	if in.StatefulSetTemplate != nil {
		out.StatefulSetTemplate = new(BuiltInStatefulSetTemplate)
		in.StatefulSetTemplate.DeepCopyInto(out.StatefulSetTemplate)
	}
}

// UnitedDeploymentTopologySubsets: One subset.
type UnitedDeploymentTopologySubsets struct {
	// At most so many Pods: a number or a percentage.
	MaxReplicas *intstr.IntOrString `json:"maxReplicas,omitempty"`
	// At least so many Pods, while spec.replicas lasts: a number or a percentage.
	MinReplicas *intstr.IntOrString `json:"minReplicas,omitempty"`
	// Its name, a DNS label.
	Name string `json:"name"`
	// The nodes of its Pods.
	NodeSelectorTerm corev1.NodeSelectorTerm `json:"nodeSelectorTerm,omitempty"`
	// A strategic merge patch on the Pod template of this subset.
	Patch runtime.RawExtension `json:"patch,omitempty"`
	// Exactly so many Pods: a number or a percentage of spec.replicas.
	Replicas *intstr.IntOrString `json:"replicas,omitempty"`
	// Tolerations that its Pods get besides those of the template.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

func (in *UnitedDeploymentTopologySubsets) DeepCopyInto(out *UnitedDeploymentTopologySubsets) {
	*out = *in
	if in.MaxReplicas != nil {
		out.MaxReplicas = new(intstr.IntOrString)
		*out.MaxReplicas = *in.MaxReplicas
	}
	if in.MinReplicas != nil {
		out.MinReplicas = new(intstr.IntOrString)
		*out.MinReplicas = *in.MinReplicas
	}
	in.NodeSelectorTerm.DeepCopyInto(&out.NodeSelectorTerm)
	in.Patch.DeepCopyInto(&out.Patch)
	if in.Replicas != nil {
		out.Replicas = new(intstr.IntOrString)
		*out.Replicas = *in.Replicas
	}
	if in.Tolerations != nil {
		out.Tolerations = make([]corev1.Toleration, len(in.Tolerations))
		copy(out.Tolerations, in.Tolerations)
		for i1 := range in.Tolerations {
			in.Tolerations[i1].DeepCopyInto(&out.Tolerations[i1])
		}
	}
}

// UnitedDeploymentTopology: The subsets.
type UnitedDeploymentTopology struct {
	// The subsets, in the order in which they are filled.
	Subsets []UnitedDeploymentTopologySubsets `json:"subsets,omitempty"`
}

func (in *UnitedDeploymentTopology) DeepCopyInto(out *UnitedDeploymentTopology) {
	*out = *in
	if in.Subsets != nil {
		out.Subsets = make([]UnitedDeploymentTopologySubsets, len(in.Subsets))
		copy(out.Subsets, in.Subsets)
		for i1 := range in.Subsets {
			in.Subsets[i1].DeepCopyInto(&out.Subsets[i1])
		}
	}
}

// UnitedDeploymentUpdateStrategyManualUpdate: Its settings.
type UnitedDeploymentUpdateStrategyManualUpdate struct {
	// By subset: how many of its Pods are kept on old revisions.
	Partitions map[string]int32 `json:"partitions,omitempty"`
}

func (in *UnitedDeploymentUpdateStrategyManualUpdate) DeepCopyInto(out *UnitedDeploymentUpdateStrategyManualUpdate) {
	*out = *in
	if in.Partitions != nil {
		out.Partitions = make(map[string]int32, len(in.Partitions))
		for key, value1 := range in.Partitions {
			out.Partitions[key] = value1
		}
	}
}

// UnitedDeploymentUpdateStrategy: How Pods get to a new revision.
type UnitedDeploymentUpdateStrategy struct {
	// Its settings.
	ManualUpdate *UnitedDeploymentUpdateStrategyManualUpdate `json:"manualUpdate,omitempty"`
	// Manual, the only one.
	Type string `json:"type,omitempty"`
}

func (in *UnitedDeploymentUpdateStrategy) DeepCopyInto(out *UnitedDeploymentUpdateStrategy) {
	*out = *in
	if in.ManualUpdate != nil {
		out.ManualUpdate = new(UnitedDeploymentUpdateStrategyManualUpdate)
		in.ManualUpdate.DeepCopyInto(out.ManualUpdate)
	}
}

// UnitedDeploymentSpec: What a UnitedDeployment should be.
type UnitedDeploymentSpec struct {
	// The desired number of Pods of all subsets together.
	Replicas *int32 `json:"replicas,omitempty"`
	// How many revisions that no subset has are kept.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// The Pods of all subsets, by their labels.
	Selector metav1.LabelSelector `json:"selector"`
	// The workload that is made for each subset: exactly one of statefulSetTemplate, advancedStatefulSetTemplate, cloneSetTemplate and deploymentTemplate, with its metadata and spec.
	Template UnitedDeploymentTemplate `json:"template,omitempty"`
	// The subsets.
	Topology UnitedDeploymentTopology `json:"topology,omitempty"`
	// How Pods get to a new revision.
	UpdateStrategy UnitedDeploymentUpdateStrategy `json:"updateStrategy,omitempty"`
}

func (in *UnitedDeploymentSpec) DeepCopyInto(out *UnitedDeploymentSpec) {
	*out = *in
	if in.Replicas != nil {
		out.Replicas = new(int32)
		*out.Replicas = *in.Replicas
	}
	if in.RevisionHistoryLimit != nil {
		out.RevisionHistoryLimit = new(int32)
		*out.RevisionHistoryLimit = *in.RevisionHistoryLimit
	}
	in.Selector.DeepCopyInto(&out.Selector)
	in.Template.DeepCopyInto(&out.Template)
	in.Topology.DeepCopyInto(&out.Topology)
	in.UpdateStrategy.DeepCopyInto(&out.UpdateStrategy)
}

// UnitedDeploymentStatusConditions: One observation.
type UnitedDeploymentStatusConditions struct {
	// When the status last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// In words.
	Message string `json:"message,omitempty"`
	// One word.
	Reason string `json:"reason,omitempty"`
	// True, False or Unknown.
	Status string `json:"status,omitempty"`
	// Its type.
	Type string `json:"type,omitempty"`
}

func (in *UnitedDeploymentStatusConditions) DeepCopyInto(out *UnitedDeploymentStatusConditions) {
	*out = *in
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
}

// UnitedDeploymentStatusSubsetStatusesConditions: One observation.
type UnitedDeploymentStatusSubsetStatusesConditions struct {
	// When the status last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// In words.
	Message string `json:"message,omitempty"`
	// One word.
	Reason string `json:"reason,omitempty"`
	// True, False or Unknown.
	Status string `json:"status,omitempty"`
	// Its type.
	Type string `json:"type,omitempty"`
}

func (in *UnitedDeploymentStatusSubsetStatusesConditions) DeepCopyInto(out *UnitedDeploymentStatusSubsetStatusesConditions) {
	*out = *in
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
}

// UnitedDeploymentStatusSubsetStatuses: One subset.
type UnitedDeploymentStatusSubsetStatuses struct {
	// Schedulable.
	Conditions []UnitedDeploymentStatusSubsetStatusesConditions `json:"conditions,omitempty"`
	// Its name.
	Name string `json:"name,omitempty"`
	// How many Pods are kept on old revisions.
	Partition int32 `json:"partition"`
	// Of them, ready.
	ReadyReplicas int32 `json:"readyReplicas"`
	// Pods that there are.
	Replicas int32 `json:"replicas"`
	// Pods that find no place and are kept all the same.
	ReservedPods int32 `json:"reservedPods"`
}

func (in *UnitedDeploymentStatusSubsetStatuses) DeepCopyInto(out *UnitedDeploymentStatusSubsetStatuses) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]UnitedDeploymentStatusSubsetStatusesConditions, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
}

// UnitedDeploymentStatusUpdateStatus: The roll-out.
type UnitedDeploymentStatusUpdateStatus struct {
	// By subset: how many of its Pods are kept on old revisions now.
	CurrentPartitions map[string]int32 `json:"currentPartitions,omitempty"`
	// The revision that Pods are updated to.
	UpdatedRevision string `json:"updatedRevision,omitempty"`
}

func (in *UnitedDeploymentStatusUpdateStatus) DeepCopyInto(out *UnitedDeploymentStatusUpdateStatus) {
	*out = *in
	if in.CurrentPartitions != nil {
		out.CurrentPartitions = make(map[string]int32, len(in.CurrentPartitions))
		for key, value1 := range in.CurrentPartitions {
			out.CurrentPartitions[key] = value1
		}
	}
}

// UnitedDeploymentStatus: What a UnitedDeployment is.
type UnitedDeploymentStatus struct {
	// How often the name of a new revision was taken.
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// Ready, Reconciling and Stalled, from which tools read how far it is (kstatus); UnitedDeploymentUpdated, SubsetProvisioned, SubsetUpdated and SubsetFailure.
	Conditions []UnitedDeploymentStatusConditions `json:"conditions,omitempty"`
	// The revision that all Pods were last on.
	CurrentRevision string `json:"currentRevision,omitempty"`
	// The selector as text, for the scale subresource.
	LabelSelector string `json:"labelSelector,omitempty"`
	// The generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Of them, ready.
	ReadyReplicas int32 `json:"readyReplicas"`
	// Pods that there are, without those that are kept although they find no place.
	Replicas int32 `json:"replicas"`
	// Pods that find no place, are kept all the same and are replaced in other subsets.
	ReservedPods int32 `json:"reservedPods"`
	// By subset: the replicas that it was given.
	SubsetReplicas map[string]int32 `json:"subsetReplicas,omitempty"`
	// The subsets.
	SubsetStatuses []UnitedDeploymentStatusSubsetStatuses `json:"subsetStatuses,omitempty"`
	// The roll-out.
	UpdateStatus *UnitedDeploymentStatusUpdateStatus `json:"updateStatus,omitempty"`
	// Of them, ready.
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas"`
	// Pods on the update revision.
	UpdatedReplicas int32 `json:"updatedReplicas"`
}

func (in *UnitedDeploymentStatus) DeepCopyInto(out *UnitedDeploymentStatus) {
	*out = *in
	if in.CollisionCount != nil {
		out.CollisionCount = new(int32)
		*out.CollisionCount = *in.CollisionCount
	}
	if in.Conditions != nil {
		out.Conditions = make([]UnitedDeploymentStatusConditions, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.SubsetReplicas != nil {
		out.SubsetReplicas = make(map[string]int32, len(in.SubsetReplicas))
		for key, value1 := range in.SubsetReplicas {
			out.SubsetReplicas[key] = value1
		}
	}
	if in.SubsetStatuses != nil {
		out.SubsetStatuses = make([]UnitedDeploymentStatusSubsetStatuses, len(in.SubsetStatuses))
		copy(out.SubsetStatuses, in.SubsetStatuses)
		for i1 := range in.SubsetStatuses {
			in.SubsetStatuses[i1].DeepCopyInto(&out.SubsetStatuses[i1])
		}
	}
	if in.UpdateStatus != nil {
		out.UpdateStatus = new(UnitedDeploymentStatusUpdateStatus)
		in.UpdateStatus.DeepCopyInto(out.UpdateStatus)
	}
}

// WorkloadSpreadSubsets: One subset.
type WorkloadSpreadSubsets struct {
	// At most so many Pods: a number, or a percentage of those that the workload wants, rounded up.
	MaxReplicas *intstr.IntOrString `json:"maxReplicas,omitempty"`
	// Its name.
	Name string `json:"name"`
	// A strategic merge patch on its Pods.
	Patch runtime.RawExtension `json:"patch,omitempty"`
	// Nodes that its Pods prefer, by weight.
	PreferredNodeSelectorTerms []corev1.PreferredSchedulingTerm `json:"preferredNodeSelectorTerms,omitempty"`
	// The nodes of its Pods: they are required.
	RequiredNodeSelectorTerm *corev1.NodeSelector `json:"requiredNodeSelectorTerm,omitempty"`
	// Tolerations that its Pods get besides their own.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

func (in *WorkloadSpreadSubsets) DeepCopyInto(out *WorkloadSpreadSubsets) {
	*out = *in
	if in.MaxReplicas != nil {
		out.MaxReplicas = new(intstr.IntOrString)
		*out.MaxReplicas = *in.MaxReplicas
	}
	in.Patch.DeepCopyInto(&out.Patch)
	if in.PreferredNodeSelectorTerms != nil {
		out.PreferredNodeSelectorTerms = make([]corev1.PreferredSchedulingTerm, len(in.PreferredNodeSelectorTerms))
		copy(out.PreferredNodeSelectorTerms, in.PreferredNodeSelectorTerms)
		for i1 := range in.PreferredNodeSelectorTerms {
			in.PreferredNodeSelectorTerms[i1].DeepCopyInto(&out.PreferredNodeSelectorTerms[i1])
		}
	}
	if in.RequiredNodeSelectorTerm != nil {
		out.RequiredNodeSelectorTerm = new(corev1.NodeSelector)
		in.RequiredNodeSelectorTerm.DeepCopyInto(out.RequiredNodeSelectorTerm)
	}
	if in.Tolerations != nil {
		out.Tolerations = make([]corev1.Toleration, len(in.Tolerations))
		copy(out.Tolerations, in.Tolerations)
		for i1 := range in.Tolerations {
			in.Tolerations[i1].DeepCopyInto(&out.Tolerations[i1])
		}
	}
}

// WorkloadSpreadTargetFilter: Which Pods of the workload are meant, and how many there are to be.
type WorkloadSpreadTargetFilter struct {
	// Where the workload says how many there are to be, for example spec.tfReplicaSpecs.Worker.replicas; the numbers at these paths are added up.
	ReplicasPathList []string `json:"replicasPathList,omitempty"`
	// Those with fitting labels.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

func (in *WorkloadSpreadTargetFilter) DeepCopyInto(out *WorkloadSpreadTargetFilter) {
	*out = *in
	if in.ReplicasPathList != nil {
		out.ReplicasPathList = make([]string, len(in.ReplicasPathList))
		copy(out.ReplicasPathList, in.ReplicasPathList)
	}
	if in.Selector != nil {
		out.Selector = new(metav1.LabelSelector)
		in.Selector.DeepCopyInto(out.Selector)
	}
}

// WorkloadSpreadTargetRef: The workload, in the same namespace: a CloneSet, Deployment, ReplicaSet, StatefulSet, Advanced StatefulSet or Job, or of a kind that the ConfigMap kruise-configuration names.
type WorkloadSpreadTargetRef struct {
	// Group and version, for example apps/v1.
	ApiVersion string `json:"apiVersion"`
	// Kind.
	Kind string `json:"kind"`
	// Name.
	Name string `json:"name"`
}

func (in *WorkloadSpreadTargetRef) DeepCopyInto(out *WorkloadSpreadTargetRef) {
	*out = *in
}

// WorkloadSpreadSpec: How the Pods of a workload are spread.
type WorkloadSpreadSpec struct {
	// The subsets, in the order in which they are filled.
	Subsets []WorkloadSpreadSubsets `json:"subsets"`
	// Which Pods of the workload are meant, and how many there are to be.
	TargetFilter *WorkloadSpreadTargetFilter `json:"targetFilter,omitempty"`
	// The workload, in the same namespace: a CloneSet, Deployment, ReplicaSet, StatefulSet, Advanced StatefulSet or Job, or of a kind that the ConfigMap kruise-configuration names.
	TargetRef WorkloadSpreadTargetRef `json:"targetRef"`
}

func (in *WorkloadSpreadSpec) DeepCopyInto(out *WorkloadSpreadSpec) {
	*out = *in
	if in.Subsets != nil {
		out.Subsets = make([]WorkloadSpreadSubsets, len(in.Subsets))
		copy(out.Subsets, in.Subsets)
		for i1 := range in.Subsets {
			in.Subsets[i1].DeepCopyInto(&out.Subsets[i1])
		}
	}
	if in.TargetFilter != nil {
		out.TargetFilter = new(WorkloadSpreadTargetFilter)
		in.TargetFilter.DeepCopyInto(out.TargetFilter)
	}
	in.TargetRef.DeepCopyInto(&out.TargetRef)
}

// WorkloadSpreadStatusSubsetStatusesConditions: One observation.
type WorkloadSpreadStatusSubsetStatusesConditions struct {
	// When the status last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// In words.
	Message string `json:"message,omitempty"`
	// One word.
	Reason string `json:"reason,omitempty"`
	// True, False or Unknown.
	Status string `json:"status,omitempty"`
	// Its type.
	Type string `json:"type,omitempty"`
}

func (in *WorkloadSpreadStatusSubsetStatusesConditions) DeepCopyInto(out *WorkloadSpreadStatusSubsetStatusesConditions) {
	*out = *in
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
}

// WorkloadSpreadStatusSubsetStatuses: One subset.
type WorkloadSpreadStatusSubsetStatuses struct {
	// Schedulable: False while it gets no Pods because some found no place.
	Conditions []WorkloadSpreadStatusSubsetStatusesConditions `json:"conditions,omitempty"`
	// Pods that are being created, by name, or by the UID in their annotation while they have no name: since when.
	CreatingPods map[string]metav1.Time `json:"creatingPods,omitempty"`
	// Pods that are being deleted, by name: since when.
	DeletingPods map[string]metav1.Time `json:"deletingPods,omitempty"`
	// How many more it may get; -1: there is no limit.
	MissingReplicas int32 `json:"missingReplicas"`
	// Its name.
	Name string `json:"name,omitempty"`
	// Pods that there are.
	Replicas int32 `json:"replicas"`
}

func (in *WorkloadSpreadStatusSubsetStatuses) DeepCopyInto(out *WorkloadSpreadStatusSubsetStatuses) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]WorkloadSpreadStatusSubsetStatusesConditions, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.CreatingPods != nil {
		out.CreatingPods = make(map[string]metav1.Time, len(in.CreatingPods))
		for key, value1 := range in.CreatingPods {
			copied := value1
			value1.DeepCopyInto(&copied)
			out.CreatingPods[key] = copied
		}
	}
	if in.DeletingPods != nil {
		out.DeletingPods = make(map[string]metav1.Time, len(in.DeletingPods))
		for key, value1 := range in.DeletingPods {
			copied := value1
			value1.DeepCopyInto(&copied)
			out.DeletingPods[key] = copied
		}
	}
}

// WorkloadSpreadStatusVersionedSubsetStatusesConditions: One observation.
type WorkloadSpreadStatusVersionedSubsetStatusesConditions struct {
	// When the status last changed.
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// In words.
	Message string `json:"message,omitempty"`
	// One word.
	Reason string `json:"reason,omitempty"`
	// True, False or Unknown.
	Status string `json:"status,omitempty"`
	// Its type.
	Type string `json:"type,omitempty"`
}

func (in *WorkloadSpreadStatusVersionedSubsetStatusesConditions) DeepCopyInto(out *WorkloadSpreadStatusVersionedSubsetStatusesConditions) {
	*out = *in
	if in.LastTransitionTime != nil {
		out.LastTransitionTime = new(metav1.Time)
		in.LastTransitionTime.DeepCopyInto(out.LastTransitionTime)
	}
}

// WorkloadSpreadStatusVersionedSubsetStatuses: One subset.
type WorkloadSpreadStatusVersionedSubsetStatuses struct {
	// Schedulable: False while it gets no Pods because some found no place.
	Conditions []WorkloadSpreadStatusVersionedSubsetStatusesConditions `json:"conditions,omitempty"`
	// Pods that are being created, by name, or by the UID in their annotation while they have no name: since when.
	CreatingPods map[string]metav1.Time `json:"creatingPods,omitempty"`
	// Pods that are being deleted, by name: since when.
	DeletingPods map[string]metav1.Time `json:"deletingPods,omitempty"`
	// How many more it may get; -1: there is no limit.
	MissingReplicas int32 `json:"missingReplicas"`
	// Its name.
	Name string `json:"name,omitempty"`
	// Pods that there are.
	Replicas int32 `json:"replicas"`
}

func (in *WorkloadSpreadStatusVersionedSubsetStatuses) DeepCopyInto(out *WorkloadSpreadStatusVersionedSubsetStatuses) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]WorkloadSpreadStatusVersionedSubsetStatusesConditions, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.CreatingPods != nil {
		out.CreatingPods = make(map[string]metav1.Time, len(in.CreatingPods))
		for key, value1 := range in.CreatingPods {
			copied := value1
			value1.DeepCopyInto(&copied)
			out.CreatingPods[key] = copied
		}
	}
	if in.DeletingPods != nil {
		out.DeletingPods = make(map[string]metav1.Time, len(in.DeletingPods))
		for key, value1 := range in.DeletingPods {
			copied := value1
			value1.DeepCopyInto(&copied)
			out.DeletingPods[key] = copied
		}
	}
}

// WorkloadSpreadStatus: How the Pods are spread.
type WorkloadSpreadStatus struct {
	// Ready: the Pods are counted, and none is on its way.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The generation of the spec that this status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// The subsets, all versions of the workload together.
	SubsetStatuses []WorkloadSpreadStatusSubsetStatuses `json:"subsetStatuses,omitempty"`
	// The subsets, by version of the workload: during a roll-out each version has its own room.
	VersionedSubsetStatuses map[string][]WorkloadSpreadStatusVersionedSubsetStatuses `json:"versionedSubsetStatuses,omitempty"`
}

func (in *WorkloadSpreadStatus) DeepCopyInto(out *WorkloadSpreadStatus) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.SubsetStatuses != nil {
		out.SubsetStatuses = make([]WorkloadSpreadStatusSubsetStatuses, len(in.SubsetStatuses))
		copy(out.SubsetStatuses, in.SubsetStatuses)
		for i1 := range in.SubsetStatuses {
			in.SubsetStatuses[i1].DeepCopyInto(&out.SubsetStatuses[i1])
		}
	}
	if in.VersionedSubsetStatuses != nil {
		out.VersionedSubsetStatuses = make(map[string][]WorkloadSpreadStatusVersionedSubsetStatuses, len(in.VersionedSubsetStatuses))
		for key, value1 := range in.VersionedSubsetStatuses {
			copied := value1
			if value1 != nil {
				copied = make([]WorkloadSpreadStatusVersionedSubsetStatuses, len(value1))
				copy(copied, value1)
				for i3 := range value1 {
					value1[i3].DeepCopyInto(&copied[i3])
				}
			}
			out.VersionedSubsetStatuses[key] = copied
		}
	}
}
