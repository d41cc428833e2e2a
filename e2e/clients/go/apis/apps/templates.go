// Package apps has the types of the group apps.kruise.io; a version of each kind is in the packages below.
package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// copier is a pointer to a type that has DeepCopyInto.
type copier[S any] interface {
	*S
	DeepCopyInto(*S)
}

// Template is metadata and spec of objects that are made of it.
type Template[S any, P copier[S]] struct {
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec S `json:"spec"`
}

func (in *Template[S, P]) DeepCopyInto(out *Template[S, P]) {
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	P(&in.Spec).DeepCopyInto(&out.Spec)
}

type (
	BroadcastJobTemplate       = Template[BroadcastJobSpec, *BroadcastJobSpec]
	ImageListPullJobTemplate   = Template[ImageListPullJobSpec, *ImageListPullJobSpec]
	StatefulSetTemplate        = Template[StatefulSetSpec, *StatefulSetSpec]
	CloneSetTemplate           = Template[CloneSetSpec, *CloneSetSpec]
	DeploymentTemplate         = Template[appsv1.DeploymentSpec, *appsv1.DeploymentSpec]
	BuiltInStatefulSetTemplate = Template[appsv1.StatefulSetSpec, *appsv1.StatefulSetSpec]
)
