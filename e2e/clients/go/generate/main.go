// Command generate writes the Go types of apis/ from the definitions in manifests/crds.
//
//	go run ./generate          writes
//	go run ./generate -check   fails when a file is not as it would be written
//
// The shapes are those that Go programs commonly use for custom resources, because their zero values reach the API server: an
// object that is not nullable is held by value and sent as {}, a list or a time that is required is sent as null, and the
// counts of a status are sent as 0.
//
// Of each kind one field is left out, the one that samples.yaml names: the types are those of a program that is older than
// the definition.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strings"

	"sigs.k8s.io/yaml"
)

type schema struct {
	Type                 string             `json:"type"`
	Format               string             `json:"format"`
	Description          string             `json:"description"`
	Properties           map[string]*schema `json:"properties"`
	Required             []string           `json:"required"`
	Items                *schema            `json:"items"`
	AdditionalProperties *schema            `json:"additionalProperties"`
	Nullable             bool               `json:"nullable"`
	IntOrString          bool               `json:"x-kubernetes-int-or-string"`
}

type version struct {
	Name    string `json:"name"`
	Served  bool   `json:"served"`
	Storage bool   `json:"storage"`
	Schema  struct {
		Object *schema `json:"openAPIV3Schema"`
	} `json:"schema"`
	Subresources map[string]any `json:"subresources"`
}

type definition struct {
	Kind string `json:"kind"`
	Spec struct {
		Group string `json:"group"`
		Scope string `json:"scope"`
		Names struct {
			Kind   string `json:"kind"`
			Plural string `json:"plural"`
		} `json:"names"`
		Versions []version `json:"versions"`
	} `json:"spec"`
}

// What the definitions leave open, and what has a type in k8s.io/api: by kind and path.
var known = map[string]string{
	"AdvancedCronJob/spec/template/broadcastJobTemplate":         "*BroadcastJobTemplate",
	"AdvancedCronJob/spec/template/imageListPullJobTemplate":     "*ImageListPullJobTemplate",
	"AdvancedCronJob/spec/template/jobTemplate":                  "*batchv1.JobTemplateSpec",
	"AdvancedCronJob/status/active":                              "[]corev1.ObjectReference",
	"BroadcastJob/spec/template":                                 "corev1.PodTemplateSpec",
	"CloneSet/spec/template":                                     "corev1.PodTemplateSpec",
	"CloneSet/spec/volumeClaimTemplates":                         "[]corev1.PersistentVolumeClaim",
	"ContainerRecreateRequest/spec/containers/ports":             "[]corev1.ContainerPort",
	"ContainerRecreateRequest/spec/containers/preStop":           "*corev1.LifecycleHandler",
	"DaemonSet/spec/template":                                    "corev1.PodTemplateSpec",
	"EphemeralJob/spec/template/ephemeralContainers":             "[]corev1.EphemeralContainer",
	"NodeImage/spec/images/tags/ownerReferences":                 "[]corev1.ObjectReference",
	"NodePodProbe/spec/podProbes/probes/probe":                   "corev1.Probe",
	"PodProbeMarker/spec/probes/probe":                           "corev1.Probe",
	"ResourceDistribution/spec/resource":                         "runtime.RawExtension",
	"SidecarSet/spec/imagePullSecrets":                           "[]corev1.LocalObjectReference",
	"SidecarSet/spec/volumes":                                    "[]corev1.Volume",
	"StatefulSet/spec/template":                                  "corev1.PodTemplateSpec",
	"StatefulSet/spec/volumeClaimTemplates":                      "[]corev1.PersistentVolumeClaim",
	"UnitedDeployment/spec/template/advancedStatefulSetTemplate": "*StatefulSetTemplate",
	"UnitedDeployment/spec/template/cloneSetTemplate":            "*CloneSetTemplate",
	"UnitedDeployment/spec/template/deploymentTemplate":          "*DeploymentTemplate",
	"UnitedDeployment/spec/template/statefulSetTemplate":         "*BuiltInStatefulSetTemplate",
	"UnitedDeployment/spec/topology/subsets/nodeSelectorTerm":    "corev1.NodeSelectorTerm",
	"UnitedDeployment/spec/topology/subsets/patch":               "runtime.RawExtension",
	"UnitedDeployment/spec/topology/subsets/tolerations":         "[]corev1.Toleration",
	"WorkloadSpread/spec/subsets/patch":                          "runtime.RawExtension",
	"WorkloadSpread/spec/subsets/preferredNodeSelectorTerms":     "[]corev1.PreferredSchedulingTerm",
	"WorkloadSpread/spec/subsets/requiredNodeSelectorTerm":       "*corev1.NodeSelector",
	"WorkloadSpread/spec/subsets/tolerations":                    "[]corev1.Toleration",
}

// Containers with members of ours beside those of a container.
var embedded = map[string]string{
	"SidecarSet/spec/containers":     "corev1.Container",
	"SidecarSet/spec/initContainers": "corev1.Container",
}

// Objects whose presence means something, although they cannot be null.
var byPointer = map[string]bool{"ResourceDistribution/spec/resourceRef": true}

// goType is a type of a field. One of element and fields is set for what is not copied by assignment.
type goType struct {
	name    string
	form    form
	element *goType
}

type form int

const (
	plain form = iota // an assignment copies it
	deep              // it has DeepCopyInto
	pointer
	list
	mapping
)

func byName(name string) *goType {
	switch {
	case strings.HasPrefix(name, "*"):
		return pointerTo(byName(name[1:]))
	case strings.HasPrefix(name, "[]"):
		return listOf(byName(name[2:]))
	default:
		return &goType{name: name, form: deep}
	}
}

func pointerTo(t *goType) *goType {
	return &goType{name: "*" + t.name, form: pointer, element: t}
}

func listOf(t *goType) *goType {
	return &goType{name: "[]" + t.name, form: list, element: t}
}

// group is the package of the types of one API group.
type group struct {
	types   bytes.Buffer
	structs map[string]*schema // by name, so that equal ones are written once
	leftOut map[string]bool    // kind and path
	err     error
}

func main() {
	check := flag.Bool("check", false, "write nothing, fail when something would be written")
	root := flag.String("root", "../../..", "the repository")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	definitions, err := read(filepath.Join(root, "manifests/crds"))
	if err != nil {
		return err
	}
	leftOut, err := leftOut(filepath.Join(root, "e2e/clients/samples.yaml"))
	if err != nil {
		return err
	}
	files, err := render(definitions, leftOut)
	if err != nil {
		return err
	}
	for _, name := range sorted(files) {
		text, err := format.Source(files[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		path := filepath.Join(root, "e2e/clients/go", name)
		if check {
			if there, err := os.ReadFile(path); err != nil || !bytes.Equal(there, text) {
				return fmt.Errorf("%s is not what the definitions say: run `go generate ./...` in e2e/clients/go", name)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func read(folder string) ([]definition, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var found []definition
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var one definition
		if err := yaml.Unmarshal(text, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if one.Kind == "CustomResourceDefinition" {
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no definition", folder)
	}
	return found, nil
}

var index = regexp.MustCompile(`/[0-9]+`)

func leftOut(path string) (map[string]bool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var samples []struct {
		Object struct {
			Kind string `json:"kind"`
		} `json:"object"`
		LeftOut string `json:"leftOut"`
	}
	if err := yaml.Unmarshal(text, &samples); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	found := map[string]bool{}
	for _, sample := range samples {
		// In a list it is left out of every element.
		if path := index.ReplaceAllString(sample.LeftOut, ""); path != "" {
			found[sample.Object.Kind+path] = true
		}
	}
	return found, nil
}

func render(definitions []definition, leftOut map[string]bool) (map[string][]byte, error) {
	groups := map[string]*group{}
	versions := map[string]*bytes.Buffer{}
	for _, of := range definitions {
		name := strings.Split(of.Spec.Group, ".")[0]
		here := groups[name]
		if here == nil {
			here = &group{structs: map[string]*schema{}, leftOut: leftOut}
			groups[name] = here
		}
		kind := of.Spec.Names.Kind
		object := of.Spec.Versions[0].Schema.Object
		here.write(kind+"Spec", object.Properties["spec"], kind+"/spec")
		here.write(kind+"Status", object.Properties["status"], kind+"/status")
		if here.err != nil {
			return nil, here.err
		}
		for _, served := range of.Spec.Versions {
			if !reflect.DeepEqual(served.Schema, of.Spec.Versions[0].Schema) {
				return nil, fmt.Errorf("%s: the schema of %s is another than that of %s: its types have to be written by version",
					kind, served.Name, of.Spec.Versions[0].Name)
			}
			path := name + "/" + served.Name
			if versions[path] == nil {
				versions[path] = bytes.NewBufferString(versionHead(of.Spec.Group, served.Name))
			}
			topLevel(versions[path], name, kind, object.Description)
		}
	}
	files := map[string][]byte{}
	for name, here := range groups {
		files["apis/"+name+"/types.go"] = append([]byte(groupHead(name, here.types.String())), here.types.Bytes()...)
	}
	for path, text := range versions {
		files["apis/"+path+"/kinds.go"] = text.Bytes()
	}
	files["apis/table.go"] = kindsTable(definitions)
	return files, nil
}

const generated = "// Code generated from manifests/crds by generate. DO NOT EDIT.\n\n"

func groupHead(name, body string) string {
	imports := map[string]string{
		"batchv1.":     `batchv1 "k8s.io/api/batch/v1"`,
		"corev1.":      `corev1 "k8s.io/api/core/v1"`,
		"metav1.":      `metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"`,
		"runtime.":     `"k8s.io/apimachinery/pkg/runtime"`,
		"intstr.IntOr": `"k8s.io/apimachinery/pkg/util/intstr"`,
	}
	head := generated + "package " + name + "\n\nimport (\n"
	for _, used := range sorted(imports) {
		if strings.Contains(body, used) {
			head += "\t" + imports[used] + "\n"
		}
	}
	return head + ")\n"
}

func versionHead(group, version string) string {
	name := strings.Split(group, ".")[0]
	return generated + "package " + version + "\n\nimport (\n" +
		"\tmetav1 \"k8s.io/apimachinery/pkg/apis/meta/v1\"\n\t\"k8s.io/apimachinery/pkg/runtime\"\n" +
		"\t\"k8s.io/apimachinery/pkg/runtime/schema\"\n\n\t\"kruise-rs.test/clients/apis/" + name + "\"\n)\n\n" +
		"// GroupVersion is that of the kinds here.\n" +
		fmt.Sprintf("var GroupVersion = schema.GroupVersion{Group: %q, Version: %q}\n", group, version)
}

// topLevel writes a kind and its list.
func topLevel(to *bytes.Buffer, group, kind, description string) {
	fmt.Fprintf(to, `
%[3]stype %[2]s struct {
	metav1.TypeMeta   `+"`json:\",inline\"`"+`
	metav1.ObjectMeta `+"`json:\"metadata,omitempty\"`"+`

	Spec   %[1]s.%[2]sSpec   `+"`json:\"spec,omitempty\"`"+`
	Status %[1]s.%[2]sStatus `+"`json:\"status,omitempty\"`"+`
}

func (in *%[2]s) DeepCopyInto(out *%[2]s) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *%[2]s) DeepCopyObject() runtime.Object {
	out := new(%[2]s)
	in.DeepCopyInto(out)
	return out
}

type %[2]sList struct {
	metav1.TypeMeta `+"`json:\",inline\"`"+`
	metav1.ListMeta `+"`json:\"metadata,omitempty\"`"+`

	Items []%[2]s `+"`json:\"items\"`"+`
}

func (in *%[2]sList) DeepCopyObject() runtime.Object {
	out := &%[2]sList{TypeMeta: in.TypeMeta, Items: make([]%[2]s, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}
`, group, kind, comment(kind, description))
}

// kindsTable writes the list of all kinds in all served versions.
func kindsTable(definitions []definition) []byte {
	var imports, rows []string
	for _, of := range definitions {
		group := strings.Split(of.Spec.Group, ".")[0]
		for _, served := range of.Spec.Versions {
			if !served.Served {
				continue
			}
			name := group + served.Name
			imports = append(imports, fmt.Sprintf("\t%s \"kruise-rs.test/clients/apis/%s/%s\"\n", name, group, served.Name))
			kind := of.Spec.Names.Kind
			_, scale := served.Subresources["scale"]
			rows = append(rows, fmt.Sprintf(
				"\t{%s.GroupVersion.WithKind(%q), %q, %t, %t, &%s.%s{}, &%s.%sList{}},\n",
				name, kind, of.Spec.Names.Plural, of.Spec.Scope == "Namespaced", scale, name, kind, name, kind))
		}
	}
	sort.Strings(imports)
	return []byte(generated + "package apis\n\nimport (\n\t\"k8s.io/apimachinery/pkg/runtime\"\n\t\"k8s.io/apimachinery/pkg/runtime/schema\"\n\n" +
		strings.Join(slices.Compact(imports), "") + `)

// Kind is a kind in one of the versions in which it is served.
type Kind struct {
	schema.GroupVersionKind
	Plural       string
	IsNamespaced bool
	HasScale     bool
	// An empty object and an empty list of the kind.
	Object, List runtime.Object
}

// Kinds is every kind in every version in which it is served.
var Kinds = []Kind{
` + strings.Join(rows, "") + "}\n")
}

// write writes the struct of an object schema and everything below it.
func (g *group) write(name string, of *schema, path string) {
	if there, ok := g.structs[name]; ok {
		if !reflect.DeepEqual(there, of) {
			g.err = errors.Join(g.err, fmt.Errorf("%s: the name %s is taken", path, name))
		}
		return
	}
	g.structs[name] = of
	var fields, copies bytes.Buffer
	inline := embedded[path]
	if inline != "" {
		fmt.Fprintf(&fields, "\t%s `json:\",inline\"`\n", inline)
		_, short, _ := strings.Cut(inline, ".")
		fmt.Fprintf(&copies, "\tin.%[1]s.DeepCopyInto(&out.%[1]s)\n", short)
	}
	for _, property := range sorted(of.Properties) {
		below := path + "/" + property
		if g.leftOut[below] || inline != "" && property == "name" {
			continue
		}
		field := strings.ToUpper(property[:1]) + property[1:]
		one := of.Properties[property]
		isRequired := slices.Contains(of.Required, property)
		t := g.typeOf(strings.TrimSuffix(name, "Spec")+field, one, below)
		if t.form <= deep && one.Nullable || t.name == "metav1.Time" && !isRequired || byPointer[below] {
			t = pointerTo(t)
		}
		tag := property
		if isCount := one.Type == "integer" && strings.Contains(path, "/status"); !isRequired && (!isCount || one.Nullable) {
			tag += ",omitempty"
		}
		fields.WriteString(comment("", one.Description))
		fmt.Fprintf(&fields, "\t%s %s `json:\"%s\"`\n", field, t.name, tag)
		copyField(&copies, t, "in."+field, "out."+field, 1)
	}
	fmt.Fprintf(&g.types, "\n%stype %s struct {\n%s}\n", comment(name, of.Description), name, fields.String())
	fmt.Fprintf(&g.types, "\nfunc (in *%[1]s) DeepCopyInto(out *%[1]s) {\n\t*out = *in\n%[2]s}\n", name, copies.String())
}

func (g *group) typeOf(name string, of *schema, path string) *goType {
	if there, ok := known[path]; ok {
		return byName(there)
	}
	switch {
	case of.IntOrString:
		return &goType{name: "intstr.IntOrString"}
	case of.Type == "string" && of.Format == "date-time":
		return &goType{name: "metav1.Time", form: deep}
	case of.Type == "string":
		return &goType{name: "string"}
	case of.Type == "boolean":
		return &goType{name: "bool"}
	case of.Type == "integer":
		return &goType{name: of.Format}
	case of.Type == "array":
		return listOf(g.typeOf(name, of.Items, path))
	case of.Type == "object" && of.AdditionalProperties != nil:
		value := g.typeOf(name, of.AdditionalProperties, path)
		return &goType{name: "map[string]" + value.name, form: mapping, element: value}
	case has(of, "matchExpressions", "matchLabels") && len(of.Properties) == 2:
		return &goType{name: "metav1.LabelSelector", form: deep}
	case has(of, "lastTransitionTime", "observedGeneration", "status", "type"):
		return &goType{name: "metav1.Condition", form: deep}
	case of.Type == "object" && len(of.Properties) > 0:
		g.write(name, of, path)
		return &goType{name: name, form: deep}
	}
	g.err = errors.Join(g.err, fmt.Errorf("%s: type %q says too little, name its Go type in the table `known`", path, of.Type))
	return &goType{name: "any"}
}

func has(of *schema, properties ...string) bool {
	return !slices.ContainsFunc(properties, func(name string) bool { return of.Properties[name] == nil })
}

// copyField writes what makes out, which is a copy by assignment of in, independent of it.
func copyField(to *bytes.Buffer, t *goType, in, out string, depth int) {
	indent := strings.Repeat("\t", depth)
	line := func(text string, arguments ...any) { fmt.Fprintf(to, indent+text+"\n", arguments...) }
	switch t.form {
	case plain:
	case deep:
		line("%s.DeepCopyInto(&%s)", in, out)
	case pointer:
		line("if %s != nil {", in)
		line("\t%s = new(%s)", out, t.element.name)
		if t.element.form == plain {
			line("\t*%s = *%s", out, in)
		} else {
			line("\t%s.DeepCopyInto(%s)", in, out)
		}
		line("}")
	case list:
		line("if %s != nil {", in)
		line("\t%s = make(%s, len(%s))", out, t.name, in)
		line("\tcopy(%s, %s)", out, in)
		if t.element.form != plain {
			i := fmt.Sprintf("i%d", depth)
			line("\tfor %s := range %s {", i, in)
			copyField(to, t.element, in+"["+i+"]", out+"["+i+"]", depth+2)
			line("\t}")
		}
		line("}")
	case mapping:
		line("if %s != nil {", in)
		line("\t%s = make(%s, len(%s))", out, t.name, in)
		value := fmt.Sprintf("value%d", depth)
		line("\tfor key, %s := range %s {", value, in)
		if t.element.form != plain {
			line("\t\tcopied := %s", value)
			copyField(to, t.element, value, "copied", depth+2)
			value = "copied"
		}
		line("\t\t%s[key] = %s", out, value)
		line("\t}")
		line("}")
	}
}

// comment is the first sentence of a description, or that of a type.
func comment(name, description string) string {
	first, _, _ := strings.Cut(strings.ReplaceAll(description, "\n", " "), ". ")
	if first == "" {
		return ""
	}
	if name != "" {
		first = name + ": " + first
	}
	return "// " + strings.TrimSuffix(first, ".") + ".\n"
}

func sorted[V any](from map[string]V) []string {
	names := make([]string, 0, len(from))
	for name := range from {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// UnmarshalJSON takes a schema that is `true` as one that says nothing.
func (s *schema) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte("true")) || bytes.Equal(text, []byte("false")) {
		return nil
	}
	type members schema
	return json.Unmarshal(text, (*members)(s))
}
