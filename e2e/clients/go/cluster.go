package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/clientcmd"

	"kruise-rs.test/clients/apis"
)

// patience is long enough for anything that a check waits for.
const patience = 60 * time.Second

// cluster has the clients of a cluster: those with types, and the dynamic one.
type cluster struct {
	config     *rest.Config
	typed      map[schema.GroupVersion]rest.Interface
	parameters runtime.ParameterCodec
	dynamic    dynamic.Interface
	discovery  *discovery.DiscoveryClient
	namespace  string
}

func connect(namespace string) (*cluster, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	// The limits of a client are not what is tested.
	config.QPS, config.Burst = 200, 400
	scheme := runtime.NewScheme()
	for _, kind := range apis.Kinds {
		scheme.AddKnownTypeWithName(kind.GroupVersionKind, kind.Object)
		scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), kind.List)
		metav1.AddToGroupVersion(scheme, kind.GroupVersion())
	}
	c := &cluster{
		config:     config,
		typed:      map[schema.GroupVersion]rest.Interface{},
		parameters: runtime.NewParameterCodec(scheme),
		namespace:  namespace,
	}
	for _, kind := range apis.Kinds {
		version := kind.GroupVersion()
		of := rest.CopyConfig(config)
		of.GroupVersion, of.APIPath = &version, "/apis"
		of.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		if c.typed[version], err = rest.RESTClientFor(of); err != nil {
			return nil, err
		}
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	c.discovery, err = discovery.NewDiscoveryClientForConfig(config)
	return c, err
}

// of names one object in the calls of the typed client.
type of struct {
	*cluster
	apis.Kind
	name string
}

func (o of) request(request *rest.Request) *rest.Request {
	return request.NamespaceIfScoped(o.namespace, o.IsNamespaced).Resource(o.Plural)
}

func (o of) client() rest.Interface { return o.typed[o.GroupVersion()] }

func (o of) empty() runtime.Object { return o.Object.DeepCopyObject() }

func (o of) create(ctx context.Context, object runtime.Object, options metav1.CreateOptions) (runtime.Object, error) {
	made := o.empty()
	request := o.request(o.client().Post()).VersionedParams(&options, o.parameters).Body(object)
	return made, request.Do(ctx).Into(made)
}

func (o of) get(ctx context.Context) (runtime.Object, error) {
	found := o.empty()
	return found, o.request(o.client().Get()).Name(o.name).Do(ctx).Into(found)
}

// raw is what the API server answers, byte for byte.
func (o of) raw(ctx context.Context) ([]byte, error) {
	return o.request(o.client().Get()).Name(o.name).Do(ctx).Raw()
}

func (o of) update(ctx context.Context, object runtime.Object) (runtime.Object, error) {
	updated := o.empty()
	return updated, o.request(o.client().Put()).Name(o.name).Body(object).Do(ctx).Into(updated)
}

func (o of) patch(ctx context.Context, form types.PatchType, patch []byte) (runtime.Object, error) {
	patched := o.empty()
	return patched, o.request(o.client().Patch(form)).Name(o.name).Body(patch).Do(ctx).Into(patched)
}

func (o of) delete(ctx context.Context, options metav1.DeleteOptions) error {
	return o.request(o.client().Delete()).Name(o.name).Body(&options).Do(ctx).Error()
}

func (o of) untyped() dynamic.ResourceInterface {
	resources := o.dynamic.Resource(o.GroupVersion().WithResource(o.Plural))
	if o.IsNamespaced {
		return resources.Namespace(o.namespace)
	}
	return resources
}

// ResourceFor makes the client of /scale use the version of the kind, where others ask which one is preferred.
func (o of) ResourceFor(resource schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return o.GroupVersion().WithResource(resource.Resource), nil
}

func (o of) scales() (scale.ScaleInterface, error) {
	resolver := scale.NewDiscoveryScaleKindResolver(o.discovery)
	// It writes into the configuration.
	client, err := scale.NewForConfig(rest.CopyConfig(o.config), o, dynamic.LegacyAPIPathResolverFunc, resolver)
	if err != nil {
		return nil, err
	}
	return client.Scales(o.namespace), nil
}

// follower keeps what a watch of one object delivers.
type follower struct {
	stop   func()
	mutex  sync.Mutex
	events []watch.Event
	more   chan struct{}
}

// follow watches from now on. The list that gives the place to begin is read with its type too.
func (o of) follow(ctx context.Context) (*follower, error) {
	only := "metadata.name=" + o.name
	list := o.List.DeepCopyObject()
	options := metav1.ListOptions{FieldSelector: only}
	if err := o.request(o.client().Get()).VersionedParams(&options, o.parameters).Do(ctx).Into(list); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	options = metav1.ListOptions{FieldSelector: only, Watch: true, ResourceVersion: list.(metav1.ListInterface).GetResourceVersion()}
	events, err := o.request(o.client().Get()).VersionedParams(&options, o.parameters).Watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	f := &follower{stop: events.Stop, more: make(chan struct{}, 1)}
	go func() {
		for event := range events.ResultChan() {
			f.mutex.Lock()
			f.events = append(f.events, event)
			f.mutex.Unlock()
			select {
			case f.more <- struct{}{}:
			default:
			}
		}
	}()
	return f, nil
}

// until waits for an event that fits, old ones included.
func (f *follower) until(ctx context.Context, what string, fits func(watch.EventType, runtime.Object) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for seen := 0; ; {
		f.mutex.Lock()
		events := f.events
		f.mutex.Unlock()
		for ; seen < len(events); seen++ {
			if events[seen].Type == watch.Error {
				return fmt.Errorf("the watch: %v", events[seen].Object)
			}
			if fits(events[seen].Type, events[seen].Object) {
				return nil
			}
		}
		select {
		case <-f.more:
		case <-ctx.Done():
			last := errors.New("no event")
			if seen > 0 {
				last = fmt.Errorf("the last of %d events: %s %s", seen, events[seen-1].Type, text(events[seen-1].Object))
			}
			return fmt.Errorf("not seen: %s; %w", what, last)
		}
	}
}
