package main

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"

	"kruise-rs.test/clients/apis"
)

// label is set by clients that change nothing else.
const label = "/metadata/labels/kruise.rs.test~1touched"

// checker does with one kind in one version what programs do.
type checker struct {
	*cluster
	apis.Kind
	sample sample
	served []apis.Kind // the same kind in all versions
	isOn   bool
	report *report
}

func (c checker) ok(format string, arguments ...any) {
	c.report.lines = append(c.report.lines, fmt.Sprintf("ok %s %s: ", c.Kind.Kind, c.Version)+fmt.Sprintf(format, arguments...))
}

func (c checker) all(ctx context.Context) error {
	name := "go-" + c.Version
	if !c.IsNamespaced {
		name = c.namespace + "-" + name
	}
	o := of{cluster: c.cluster, Kind: c.Kind, name: name}
	made, err := typed(c.Kind, []byte(text(c.sample.named(c.Kind, c.namespace, name))))
	if err != nil {
		return fmt.Errorf("the sample has a field that the type has not: %w", err)
	}
	if !c.isOn {
		return c.refused(ctx, o, made)
	}
	events, err := o.follow(ctx)
	if err != nil {
		return err
	}
	defer events.stop()
	if err := c.create(ctx, o, made, events); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	for _, step := range []struct {
		name string
		run  func(context.Context, of, *follower) error
	}{
		{"read", c.read},
		{"status", c.status},
		{"update", c.update},
		{"merge patch", c.mergePatch},
		{"JSON patch", c.jsonPatch},
		{"strategic merge patch", c.strategicPatch},
		{"scale", c.scale},
		{"delete", c.delete},
		{"fields that the types do not have", c.unknown},
	} {
		if err := step.run(ctx, o, events); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// refused: what is behind a feature gate is refused, with the gate's name.
func (c checker) refused(ctx context.Context, o of, object runtime.Object) error {
	_, err := o.create(ctx, object, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.sample.Gate) {
		return fmt.Errorf("while %s is off: %v", c.sample.Gate, err)
	}
	c.ok("refused while %s is off", c.sample.Gate)
	return nil
}

// create: the zero values of the type are sent, and what programs before Kubernetes 1.34 send.
func (c checker) create(ctx context.Context, o of, object runtime.Object, events *follower) error {
	old := viaJSON(object)
	set(old, "/status", map[string]any{})
	old["metadata"].(map[string]any)["creationTimestamp"] = nil
	if template, has := at(old, "/spec/template/metadata").(map[string]any); has {
		template["creationTimestamp"] = nil
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if _, err := o.untyped().Create(ctx, &unstructured.Unstructured{Object: old}, dry); err != nil {
		return fmt.Errorf("with creationTimestamp: null: %w", err)
	}
	c.ok("creationTimestamp: null and an empty status are taken")
	made, err := o.create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if made.(metav1.Object).GetUID() == "" {
		return fmt.Errorf("the answer is %s", text(made))
	}
	err = events.until(ctx, "ADDED", func(event watch.EventType, seen runtime.Object) bool {
		return event == watch.Added && seen.(metav1.Object).GetUID() == made.(metav1.Object).GetUID()
	})
	if err != nil {
		return err
	}
	c.ok("created, and seen by a watch")
	return nil
}

// read: nothing is stored that the type does not have, and every version shows the same object.
func (c checker) read(ctx context.Context, o of, _ *follower) error {
	raw, err := o.raw(ctx)
	if err != nil {
		return err
	}
	stored := parsed(raw)
	// Admission may have written them.
	for _, path := range []string{c.sample.LeftOut, c.sample.Inside} {
		if path != "" && at(stored, path) != nil {
			set(stored, path, nil)
		}
	}
	if _, err := typed(c.Kind, []byte(text(stored))); err != nil {
		return err
	}
	for _, version := range c.served {
		other, err := (of{cluster: c.cluster, Kind: version, name: o.name}).raw(ctx)
		if err != nil {
			return fmt.Errorf("in version %s: %w", version.Version, err)
		}
		if got := parsed(other); !reflect.DeepEqual(at(got, "/spec"), at(parsed(raw), "/spec")) ||
			at(got, "/metadata/uid") != at(stored, "/metadata/uid") {
			return fmt.Errorf("in version %s it is %s, else %s", version.Version, other, raw)
		}
	}
	c.ok("read strictly, the same in %d version(s)", len(c.served))
	return nil
}

// status: it comes by the watch, follows the generation, and its counts are there as zeros.
func (c checker) status(ctx context.Context, o of, events *follower) error {
	fields := reflect.TypeOf(c.Object).Elem()
	status, _ := fields.FieldByName("Status")
	if _, follows := status.Type.FieldByName("ObservedGeneration"); !follows {
		c.ok("its status follows no generation")
		return nil
	}
	if err := c.settled(ctx, o, events); err != nil {
		return err
	}
	raw, err := o.raw(ctx)
	if err != nil {
		return err
	}
	var counts, missing []string
	for i := range status.Type.NumField() {
		field := status.Type.Field(i)
		if kind := field.Type.Kind(); kind != reflect.Int32 && kind != reflect.Int64 {
			continue
		}
		name := field.Tag.Get("json")
		counts = append(counts, name)
		if at(parsed(raw), "/status/"+name) == nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("no %s in %s", strings.Join(missing, ", "), text(at(parsed(raw), "/status")))
	}
	c.ok("status of this generation, with zeros: %s", strings.Join(counts, ", "))
	return nil
}

// settled waits until the status is of the generation that is stored now.
func (c checker) settled(ctx context.Context, o of, events *follower) error {
	now, err := o.get(ctx)
	if err != nil {
		return err
	}
	generation := now.(metav1.Object).GetGeneration()
	return events.until(ctx, fmt.Sprintf("status.observedGeneration %d", generation), func(_ watch.EventType, seen runtime.Object) bool {
		observed, _ := at(viaJSON(seen), "/status/observedGeneration").(int64)
		return observed >= generation
	})
}

// update: writing what was read changes nothing.
func (c checker) update(ctx context.Context, o of, _ *follower) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		before, err := o.get(ctx)
		if err != nil {
			return err
		}
		after, err := o.update(ctx, before)
		if err != nil {
			return err
		}
		if b, a := before.(metav1.Object), after.(metav1.Object); a.GetGeneration() != b.GetGeneration() {
			return fmt.Errorf("an update with what was read makes generation %d of %d: %s of %s",
				a.GetGeneration(), b.GetGeneration(), text(after), text(before))
		}
		c.ok("updated with what was read, same generation")
		return nil
	})
}

// mergePatch: the difference between two Go values, as programs make it.
func (c checker) mergePatch(ctx context.Context, o of, events *follower) error {
	before, err := o.get(ctx)
	if err != nil {
		return err
	}
	patch, err := c.difference(before, c.sample.Change.Path, c.sample.Change.Value)
	if err != nil {
		return err
	}
	after, err := o.patch(ctx, types.MergePatchType, patch)
	if err != nil {
		return fmt.Errorf("%s: %w", patch, err)
	}
	want := viaJSON(before)
	set(want, c.sample.Change.Path, viaJSON(c.sample.Change)["value"])
	if got := viaJSON(after); !reflect.DeepEqual(at(got, "/spec"), at(want, "/spec")) ||
		!reflect.DeepEqual(at(got, c.sample.Change.Path), at(want, c.sample.Change.Path)) {
		return fmt.Errorf("%s makes %s of %s", patch, text(after), text(before))
	}
	version := after.(metav1.Object).GetResourceVersion()
	err = events.until(ctx, "MODIFIED "+version, func(event watch.EventType, seen runtime.Object) bool {
		return event == watch.Modified && seen.(metav1.Object).GetResourceVersion() == version
	})
	if err != nil {
		return err
	}
	c.ok("merge patch %s, and seen by a watch", patch)
	return nil
}

// difference is the merge patch that makes a change of an object of a Go type.
func (c checker) difference(before runtime.Object, path string, value any) ([]byte, error) {
	changed := viaJSON(before)
	set(changed, path, value)
	after, err := typed(c.Kind, []byte(text(changed)))
	if err != nil {
		return nil, err
	}
	return jsonpatch.CreateMergePatch([]byte(text(before)), []byte(text(after)))
}

// jsonPatch: takes back the change that was made before, if it is still there.
func (c checker) jsonPatch(ctx context.Context, o of, _ *follower) error {
	type operation struct {
		Operation string `json:"op"`
		Path      string `json:"path"`
		Value     any    `json:"value,omitempty"`
	}
	path := c.sample.Change.Path
	test := operation{"test", path, c.sample.Change.Value}
	back := operation{"remove", path, nil}
	if old := at(c.sample.Object, path); old != nil {
		back = operation{"replace", path, old}
	}
	patched, err := o.patch(ctx, types.JSONPatchType, []byte(text([]operation{test, back})))
	if err != nil {
		return err
	}
	if got := at(viaJSON(patched), path); reflect.DeepEqual(got, viaJSON(c.sample.Change)["value"]) {
		return fmt.Errorf("%s is still %v", path, got)
	}
	if _, err = o.patch(ctx, types.JSONPatchType, []byte(text([]operation{test, back}))); !apierrors.IsInvalid(err) {
		return fmt.Errorf("a test that does not hold: %v", err)
	}
	c.ok("JSON patch, and one whose test does not hold is refused")
	return nil
}

// strategicPatch: no API server knows how to merge the lists of a custom resource.
func (c checker) strategicPatch(ctx context.Context, o of, _ *follower) error {
	_, err := o.patch(ctx, types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
	if !apierrors.IsUnsupportedMediaType(err) {
		return fmt.Errorf("not refused: %v", err)
	}
	c.ok("a strategic merge patch is refused: 415")
	return nil
}

// scale: by the client that HorizontalPodAutoscalers use.
func (c checker) scale(ctx context.Context, o of, events *follower) error {
	if !c.HasScale {
		return nil
	}
	scales, err := o.scales()
	if err != nil {
		return err
	}
	resource := o.GroupVersion().WithResource(o.Plural)
	if err := c.settled(ctx, o, events); err != nil {
		return err
	}
	var scaled *autoscalingv1.Scale
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := scales.Get(ctx, resource.GroupResource(), o.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.Spec.Replicas != 0 || now.Status.Selector != "app=none" {
			return fmt.Errorf("it is %s", text(now))
		}
		now.Spec.Replicas = 1
		scaled, err = scales.Update(ctx, resource.GroupResource(), now, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if scaled.Spec.Replicas != 1 {
		return fmt.Errorf("the answer is %s", text(scaled))
	}
	has := func(replicas int64) func(watch.EventType, runtime.Object) bool {
		return func(_ watch.EventType, seen runtime.Object) bool {
			object := viaJSON(seen)
			return at(object, "/spec/replicas") == replicas && at(object, "/status/replicas") == replicas &&
				at(object, "/status/observedGeneration") == at(object, "/metadata/generation") &&
				seen.(metav1.Object).GetGeneration() > 1
		}
	}
	if err := events.until(ctx, "one replica", has(1)); err != nil {
		return err
	}
	if scaled, err = scales.Patch(ctx, resource, o.name, types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	if scaled.Spec.Replicas != 0 {
		return fmt.Errorf("the answer to the patch is %s", text(scaled))
	}
	c.ok("scaled to 1 by an update and to 0 by a patch")
	return nil
}

// delete: this object alone, whatever has its name by then.
func (c checker) delete(ctx context.Context, o of, events *follower) error {
	found, err := o.get(ctx)
	if err != nil {
		return err
	}
	uid, other, background := found.(metav1.Object).GetUID(), types.UID("another"), metav1.DeletePropagationBackground
	err = o.delete(ctx, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	if !apierrors.IsConflict(err) {
		return fmt.Errorf("with another UID: %v", err)
	}
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background}
	if err := o.delete(ctx, options); err != nil {
		return err
	}
	err = events.until(ctx, "DELETED", func(event watch.EventType, seen runtime.Object) bool {
		return event == watch.Deleted && seen.(metav1.Object).GetUID() == uid
	})
	if err != nil {
		return err
	}
	if _, err := o.get(ctx); !apierrors.IsNotFound(err) {
		return fmt.Errorf("after it is gone: %v", err)
	}
	c.ok("deleted by its UID, and seen by a watch")
	return nil
}

// unknown: a field that the types do not have stays where a typed client patches and a dynamic client updates.
func (c checker) unknown(ctx context.Context, o of, _ *follower) error {
	if c.sample.LeftOut == "" {
		c.ok("no field is left out of the types")
		return nil
	}
	o.name += "-newer"
	newer := c.sample.named(c.Kind, c.namespace, o.name)
	if c.sample.Without != "" {
		set(newer, c.sample.Without, nil)
	}
	set(newer, c.sample.LeftOut, viaJSON(c.sample)["value"])
	if _, err := typed(c.Kind, []byte(text(newer))); err == nil {
		return fmt.Errorf("the types have %s", c.sample.LeftOut)
	}
	events, err := o.follow(ctx)
	if err != nil {
		return err
	}
	defer events.stop()
	made, err := o.untyped().Create(ctx, &unstructured.Unstructured{Object: newer}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	has := func(after string) error {
		raw, err := o.raw(ctx)
		if err != nil {
			return err
		}
		if got, want := at(parsed(raw), c.sample.LeftOut), at(made.Object, c.sample.LeftOut); got == nil || !reflect.DeepEqual(got, want) {
			return fmt.Errorf("after %s %s is %s, not %s", after, c.sample.LeftOut, text(got), text(want))
		}
		return nil
	}
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"the merge patch of a typed client", func() error {
			before, err := o.get(ctx)
			if err != nil {
				return err
			}
			patch, err := c.difference(before, label, "merge")
			if err != nil {
				return err
			}
			_, err = o.patch(ctx, types.MergePatchType, patch)
			return err
		}},
		{"the JSON patch of a typed client", func() error {
			patch := []map[string]any{{"op": "replace", "path": label, "value": "json"}}
			_, err := o.patch(ctx, types.JSONPatchType, []byte(text(patch)))
			return err
		}},
		{"the update of a dynamic client", func() error {
			return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
				found, err := o.untyped().Get(ctx, o.name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				set(found.Object, label, "dynamic")
				_, err = o.untyped().Update(ctx, found, metav1.UpdateOptions{})
				return err
			})
		}},
	} {
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if err := has(step.name); err != nil {
			return err
		}
	}
	c.ok("%s stays after patches of a typed client and an update of a dynamic one", c.sample.LeftOut)
	if err := c.rollsNothing(ctx, o, events); err != nil {
		return err
	}
	return o.delete(ctx, metav1.DeleteOptions{})
}

// rollsNothing: the zero values that an update of a typed client adds to an object that it has not made start no roll-out.
func (c checker) rollsNothing(ctx context.Context, o of, events *follower) error {
	if _, has := at(c.sample.Object, "/spec/updateStrategy").(map[string]any); !has {
		return nil
	}
	revisions := func() (string, error) {
		if err := c.settled(ctx, o, events); err != nil {
			return "", err
		}
		raw, err := o.raw(ctx)
		if err != nil {
			return "", err
		}
		found := map[string]any{}
		for _, field := range []string{"currentRevision", "updateRevision", "latestRevision", "daemonSetHash"} {
			if revision := at(parsed(raw), "/status/"+field); revision != nil {
				found[field] = revision
			}
		}
		if len(found) == 0 {
			return "", fmt.Errorf("no revision in %s", raw)
		}
		return text(found), nil
	}
	before, err := revisions()
	if err != nil {
		return err
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		found, err := o.get(ctx)
		if err == nil {
			_, err = o.update(ctx, found)
		}
		return err
	})
	if err != nil {
		return err
	}
	after, err := revisions()
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("an update of a typed client makes revisions %s of %s", after, before)
	}
	c.ok("the update of a typed client makes no revision")
	return nil
}
