package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"kruise-rs.test/clients/apis"
)

// sample is an entry of samples.yaml, which says what the members are.
type sample struct {
	Object map[string]any `json:"object"`
	Change struct {
		Path  string `json:"path"`
		Value any    `json:"value"`
	} `json:"change"`
	LeftOut string `json:"leftOut"`
	Value   any    `json:"value"`
	Without string `json:"without"`
	Inside  string `json:"inside"`
	Gate    string `json:"gate"`
}

func readSamples(path, namespace string) (map[string]sample, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	text = bytes.ReplaceAll(text, []byte("NAMESPACE"), []byte(namespace))
	var all []sample
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	byKind := map[string]sample{}
	for _, one := range all {
		byKind[at(one.Object, "/kind").(string)] = one
	}
	return byKind, nil
}

// named is the sample's object in a version, with a name.
func (s sample) named(kind apis.Kind, namespace, name string) map[string]any {
	object := runtime.DeepCopyJSON(viaJSON(s.Object))
	object["apiVersion"] = kind.GroupVersion().String()
	set(object, "/metadata/name", name)
	if kind.IsNamespaced {
		set(object, "/metadata/namespace", namespace)
	}
	return object
}

// typed reads an object as the Go type of its kind; a field that the type does not have is an error.
func typed(kind apis.Kind, from []byte) (runtime.Object, error) {
	object := kind.Object.DeepCopyObject()
	decoder := json.NewDecoder(bytes.NewReader(from))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(object); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return object, nil
}

// viaJSON is a value as JSON reads it, with whole numbers as int64.
func viaJSON(value any) map[string]any {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return parsed(text)
}

func parsed(text []byte) map[string]any {
	object := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil {
		panic(fmt.Errorf("%w: %s", err, text))
	}
	return whole(object).(map[string]any)
}

func whole(value any) any {
	switch value := value.(type) {
	case json.Number:
		if number, err := value.Int64(); err == nil {
			return number
		}
		number, err := value.Float64()
		if err != nil {
			panic(err)
		}
		return number
	case map[string]any:
		for key := range value {
			value[key] = whole(value[key])
		}
	case []any:
		for i := range value {
			value[i] = whole(value[i])
		}
	}
	return value
}

func parts(pointer string) []string {
	all := strings.Split(pointer, "/")[1:]
	for i := range all {
		all[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(all[i])
	}
	return all
}

// at reads by JSON pointer; what is not there reads as nil.
func at(value any, pointer string) any {
	for _, part := range parts(pointer) {
		switch here := value.(type) {
		case map[string]any:
			value = here[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(here) {
				return nil
			}
			value = here[i]
		default:
			return nil
		}
	}
	return value
}

// set writes by JSON pointer and makes the objects on the way; nil removes.
func set(object map[string]any, pointer string, value any) {
	all := parts(pointer)
	last := all[len(all)-1]
	var here any = object
	for _, part := range all[:len(all)-1] {
		switch in := here.(type) {
		case map[string]any:
			if in[part] == nil {
				in[part] = map[string]any{}
			}
			here = in[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil {
				panic(err)
			}
			here = in[i]
		}
	}
	if in := here.(map[string]any); value == nil {
		delete(in, last)
	} else {
		in[last] = value
	}
}
