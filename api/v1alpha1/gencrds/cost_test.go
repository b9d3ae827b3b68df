package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// tenantKinds are the CRDs whose objects tenants write, or whose rules are many.
var tenantKinds = []string{"bpfapplications", "clusterbpfapplications"}

// installed is the schema of a CRD as the chart installs it.
func installed(t testing.TB, plural string) *apiextensions.JSONSchemaProps {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "charts", "skep", "files", "crds", "skep.dev_"+plural+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &crd); err != nil {
		t.Fatal(err)
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		t.Fatal(err)
	}
	return &props
}

// estimate adds up what an API server expects all rules below a schema to cost at
// most, each with its message, as often as they can be evaluated.
func estimate(t *testing.T, s *apiextensions.JSONSchemaProps, c *crdvalidation.CELSchemaContext) (total uint64) {
	t.Helper()
	if len(s.XValidations) > 0 {
		info, err := c.TypeInfo()
		if err != nil {
			t.Fatal(err)
		}
		env := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
		rules, err := cel.Compile(info.Schema, info.DeclType, celconfig.PerCallLimit, env, cel.NewExpressionsEnvLoader())
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range rules {
			if r.Error != nil || r.MessageExpressionError != nil {
				t.Errorf("%s: %v, %v", s.XValidations[i].Rule, r.Error, r.MessageExpressionError)
			}
			if c.MaxCardinality == nil {
				t.Fatalf("%s: nothing bounds how often it is evaluated", s.XValidations[i].Rule)
			}
			total += *c.MaxCardinality * (r.MaxCost + r.MessageExpressionMaxCost)
		}
	}
	for name, p := range s.Properties {
		total += estimate(t, &p, c.ChildPropertyContext(&p, name))
	}
	if s.Items != nil {
		total += estimate(t, s.Items.Schema, c.ChildItemsContext(s.Items.Schema))
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		total += estimate(t, s.AdditionalProperties.Schema, c.ChildAdditionalPropertiesContext(s.AdditionalProperties.Schema))
	}
	return total
}

// TestRulesAreEstimatedToBeCheap bounds the API server's own estimate. A whole CRD
// may cost 100,000,000; one rule 10,000,000.
func TestRulesAreEstimatedToBeCheap(t *testing.T) {
	for plural, most := range map[string]uint64{
		// It takes every program for one with MaxProgramAttachments.
		"bpfapplications": 3_700_000, "clusterbpfapplications": 3_700_000, "bpfpolicies": 10_000, "clusterbpfpolicies": 10_000,
		"bpfsigners": 10_000, "bpfnodes": 10_000, "bpfintents": 10_000, "bpfimages": 10_000,
	} {
		t.Run(plural, func(t *testing.T) {
			s := installed(t, plural)
			got := estimate(t, s, crdvalidation.RootCELContext(s))
			t.Logf("estimated cost: %d", got)
			if got > most {
				t.Errorf("the rules are estimated to cost %d, want at most %d", got, most)
			}
		})
	}
}

// values counts how many values a spec can hold whose schema says what they are:
// each takes an API server microseconds and a kilobyte or two to validate.
func values(t *testing.T, path string, s *apiextensions.JSONSchemaProps) int64 {
	below := func(place string, most *int64, s *apiextensions.JSONSchemaProps) int64 {
		if most == nil {
			t.Errorf("nothing bounds how many %s%s there are", path, place)
			return 0
		}
		return *most * values(t, path+place, s)
	}
	if len(s.AnyOf) > 0 {
		return valuesOfAny(t, path, s)
	}
	count := int64(1)
	for name, p := range s.Properties {
		count += values(t, path+"."+name, &p)
	}
	if s.Items != nil {
		count += below("[]", s.MaxItems, s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		count += below(".*", s.MaxProperties, s.AdditionalProperties.Schema)
	}
	return count
}

// valuesOfAny is the most that one of the alternatives of a schema allows.
func valuesOfAny(t *testing.T, path string, s *apiextensions.JSONSchemaProps) (most int64) {
	for _, alternative := range s.AnyOf {
		one := s.DeepCopy()
		one.AnyOf = nil
		narrow(one, &alternative)
		most = max(most, values(t, path, one))
	}
	return most
}

// narrow has a schema allow no more items than another one does, there and below.
func narrow(s, by *apiextensions.JSONSchemaProps) {
	if by.MaxItems != nil && (s.MaxItems == nil || *by.MaxItems < *s.MaxItems) {
		s.MaxItems = by.MaxItems
	}
	if by.Items != nil {
		narrow(s.Items.Schema, by.Items.Schema)
	}
	for name, p := range by.Properties {
		narrowed := s.Properties[name]
		narrow(&narrowed, &p)
		s.Properties[name] = narrowed
	}
}

func TestASpecIsBoundedInEveryDimension(t *testing.T) {
	for _, plural := range tenantKinds {
		t.Run(plural, func(t *testing.T) {
			spec := installed(t, plural).Properties["spec"]
			got := values(t, "spec", &spec)
			t.Logf("a spec holds at most %d values", got)
			if got > 318_000 {
				t.Errorf("a spec can hold %d values: bound its lists", got)
			}
		})
	}
}

// validated is what validating one object took.
type validated struct {
	// cost is in the units of CEL's own budget.
	cost int64
	// bytes were allocated, which unlike time is the same on a machine that is busy.
	bytes  uint64
	errors []string
}

// validate does what an API server does to a new application, after it was decoded.
func validate(t testing.TB, props *apiextensions.JSONSchemaProps, spec map[string]any) validated {
	t.Helper()
	structural, err := schema.NewStructural(props)
	if err != nil {
		t.Fatal(err)
	}
	shape, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		t.Fatal(err)
	}
	rules := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	object := map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindClusterBpfApplication, "metadata": map[string]any{"name": "a"}, "spec": spec,
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	found, left := validation.ValidateCustomResource(nil, object, shape), int64(celconfig.RuntimeCELCostBudget)
	if !slices.ContainsFunc(found, blocks) {
		var broken field.ErrorList
		broken, left = rules.Validate(t.Context(), nil, structural, object, nil, celconfig.RuntimeCELCostBudget)
		found = append(found, broken...)
	}
	runtime.ReadMemStats(&after)
	v := validated{cost: celconfig.RuntimeCELCostBudget - left, bytes: after.TotalAlloc - before.TotalAlloc}
	for _, err := range found {
		v.errors = append(v.errors, err.Error())
	}
	return v
}

// blocks reports whether an API server evaluates no rule once it found this error.
func blocks(err *field.Error) bool {
	return slices.Contains([]field.ErrorType{
		field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid,
	}, err.Type)
}

// fields are those of an object.
type fields = map[string]any

// attaching is a spec with so many programs of so many attachments.
func attaching(programs, each int, attachment fields) fields {
	var all []any
	for i := range programs {
		all = append(all, fields{"name": fmt.Sprintf("p%d", i), "attach": repeat(each, attachment)})
	}
	return fields{"bytecode": fields{"image": "r.example.com/x:v1"}, "programs": all}
}

// repeat is a list of one value.
func repeat(n int, value any) []any {
	all := make([]any, n)
	for i := range all {
		all[i] = value
	}
	return all
}

// with is the smallest spec with one field more.
func with(field string, value any) fields {
	spec := attaching(1, 1, fields{"hook": "iter"})
	spec[field] = value
	return spec
}

// keyed is a map of so many entries.
func keyed(n int, value any) fields {
	all := fields{}
	for i := range n {
		all[fmt.Sprintf("example.com/k%d", i)] = value
	}
	return all
}

// TestTheLargestApplicationsAreCheapToValidate bounds what the objects that use
// the bounds up, each in another dimension, take of an API server. Before there
// were 16 attachments of a program, 256 in all and one rule, 4,096 attachments
// cost 192,512, allocated 471 MiB and took 2 s.
func TestTheLargestApplicationsAreCheapToValidate(t *testing.T) {
	const (
		programs, each = v1alpha1.MaxAttachments / v1alpha1.MaxProgramAttachments, v1alpha1.MaxProgramAttachments
		mostPrograms   = v1alpha1.MaxProgramsOfMany
		mib            = 1 << 20
	)
	everything := fields{"hook": "xdp", "xdpMode": "Native", "priority": int64(1), "afterNamespaces": false,
		"proceedOn":  []any{"Aborted", "Drop", "Pass", "Tx", "Redirect"},
		"interfaces": fields{"names": repeat(16, "eth*"), "exclude": repeat(16, "eth0")}}
	binary := fields{"hook": "uprobe", "binary": fields{"path": "/bin/sh", "offset": int64(1)}}
	misfit := fields{"hook": "cgroup/getpeername_unix", "cgroup": "/a", "proceedOn": []any{"Drop"}}
	selector := fields{"matchLabels": keyed(v1alpha1.MaxPodLabels, "v"), "matchExpressions": repeat(v1alpha1.MaxPodRequirements,
		fields{"key": "example.com/k", "operator": "In", "values": repeat(v1alpha1.MaxPodValues, "v")})}
	inPods := fields{"hook": "sockops", "pods": fields{
		"selector": selector, "namespaceSelector": selector, "containers": repeat(v1alpha1.MaxPodContainers, "app*"),
	}}
	entry := fields{"key": int64(1), "value": int64(1)}
	others := repeat(v1alpha1.MaxSharedWith, nil)
	for i := range others {
		others[i] = fmt.Sprintf("application-%d", i)
	}
	readers := repeat(v1alpha1.MaxExportNames, nil)
	for i := range readers {
		readers[i] = fmt.Sprintf("reader-%d", i)
	}
	grants := repeat(v1alpha1.MaxExports, fields{"access": "Read", "namespaces": readers, "serviceAccounts": readers, "groups": readers})
	labels := repeat(v1alpha1.MaxMapLabels, nil)
	for i := range labels {
		labels[i] = fields{"name": fmt.Sprintf("l%d", i), "field": "a.b", "decoder": "InetIP"}
	}
	series := fields{"name": "n", "type": "Gauge", "labels": labels, "values": fields{"a": "a", "b": "b", "c": "c", "d": "d"}}
	requirement := fields{"key": "example.com/k", "operator": "In", "values": repeat(v1alpha1.MaxSelectorValues, "v")}
	for name, c := range map[string]struct {
		spec  fields
		cost  int64
		bytes uint64
		error string
	}{
		"attachments to a cgroup":                       {attaching(programs, each, fields{"hook": "cgroup/setsockopt", "cgroup": "/a"}), 12_200, 20 * mib, ""},
		"attachments in Pods":                           {attaching(programs, each, inPods), 12_200, 64 * mib, ""},
		"more of them, which only a rule denies":        {attaching(mostPrograms, each, inPods), 60_000, 224 * mib, "more than 256 attachments"},
		"attachments to a binary":                       {attaching(programs, each, binary), 15_000, 32 * mib, ""},
		"attachments to interfaces, every field used":   {attaching(programs, each, everything), 15_000, 64 * mib, ""},
		"more attachments, which only a rule denies":    {attaching(mostPrograms, each, everything), 60_000, 224 * mib, "more than 256 attachments"},
		"the same with a field that the hook takes not": {attaching(mostPrograms, each, misfit), 92_000, 232 * mib, "takes no proceedOn; remove it"},
		"as many programs of few attachments":           {attaching(v1alpha1.MaxPrograms, 1, inPods), 18_000, 64 * mib, ""},
		"more of them, which only a rule denies, of as many programs": {
			attaching(v1alpha1.MaxPrograms, v1alpha1.MaxFewAttachments, inPods), 60_000, 224 * mib, "more than 256 attachments",
		},
		"as many programs of many attachments, of which no rule is asked": {
			attaching(v1alpha1.MaxPrograms, each, fields{"hook": "iter"}), 0, 64 * mib, "at most",
		},
		"requirements of a node selector": {
			with("nodeSelector", fields{"matchExpressions": repeat(v1alpha1.MaxSelectorRequirements, requirement)}), 10_000, 64 * mib, "",
		},
		"labels of a node selector": {with("nodeSelector", fields{"matchLabels": keyed(64, "v")}), 10_000, 8 * mib, ""},
		"maps":                      {with("maps", keyed(64, fields{"maxEntries": int64(1)})), 10_000, 8 * mib, ""},
		"contents of maps": {
			with("maps", keyed(64, fields{"contents": repeat(v1alpha1.MaxContents/64, entry)})), 10_000, 24 * mib, "",
		},
		"contents that only a rule denies": {
			with("maps", keyed(64, fields{"contents": repeat(v1alpha1.MaxMapEntries, entry)})), 10_000, 224 * mib, "more than 6553 entries",
		},
		"maps of other applications": {with("maps", keyed(64, fields{"from": fields{"application": "a", "map": "m"}})), 10_000, 8 * mib, ""},
		"the same with a field that the other has": {
			with("maps", keyed(64, fields{"from": fields{"application": "a", "map": "m"}, "onUpdate": "Keep"})), 10_000, 8 * mib, "set from alone",
		},
		"maps for other applications": {with("maps", keyed(64, fields{"sharedWith": others})), 10_000, 16 * mib, ""},
		"maps for readers":            {with("maps", keyed(64, fields{"export": grants})), 10_000, 24 * mib, ""},
		"maps with metrics":           {with("maps", keyed(64, fields{"metrics": series})), 10_000, 16 * mib, ""},
		"metrics that only a rule denies": {
			with("maps", keyed(64, fields{"metrics": fields{"name": "n", "type": "Gauge", "value": "a", "values": fields{"a": "a"}}})), 10_000, 8 * mib, "not both",
		},
		"variables": {with("variables", keyed(256, int64(1))), 10_000, 8 * mib, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := validate(t, installed(t, "clusterbpfapplications"), c.spec)
			t.Logf("cost %d, %d KiB allocated, %d errors", got.cost, got.bytes>>10, len(got.errors))
			if got.cost > c.cost || got.bytes > raceFactor*c.bytes {
				t.Errorf("validating it costs %d, want at most %d, and allocates %d MiB, want at most %d", got.cost, c.cost, got.bytes/mib, c.bytes/mib)
			}
			if all := strings.Join(got.errors, "\n"); (c.error == "") != (all == "") || !strings.Contains(all, c.error) {
				t.Errorf("%.500s, want %q", all, c.error)
			}
		})
	}
}
