package crds

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
)

// full sets every field of a value, strings to a text that the schema of the field accepts.
func full(v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		full(v.Elem(), name)
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Name != "ObjectMeta" && field.Name != "TypeMeta" {
				key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
				full(v.Field(i), key)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		full(v.Index(0), name)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"k8s:app": "cart"}))
	case reflect.String:
		words := map[string]string{"podCIDRs": "10.0.0.0/24", "state": "ready", "externalCIDRs": "10.0.0.0/24"}
		if v.SetString("x"); words[name] != "" {
			v.SetString(words[name])
		}
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint16:
		v.SetUint(7)
	}
}

// TestSchemas_AcceptFullObjects: objects of the agent's types are accepted with every field set.
func TestSchemas_AcceptFullObjects(t *testing.T) {
	t.Parallel()
	for _, object := range []any{&ciliumv2.CiliumNode{}, &ciliumv2.CiliumEndpoint{}, &ciliumv2.CiliumIdentity{}, &ciliumv2.CiliumCIDRGroup{},
		&ciliumv2.CiliumEndpointSlice{}} {
		full(reflect.ValueOf(object).Elem(), "")
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		var plain any
		if err := json.Unmarshal(text, &plain); err != nil {
			t.Fatal(err)
		}
		plain.(map[string]any)["metadata"] = map[string]any{"name": "7", "labels": map[string]any{"a": "b"}}
		if faults := check(schemaOf(t, reflect.TypeOf(object).Elem().Name()), plain, ""); len(faults) > 0 {
			t.Errorf("%s: %q", text, faults)
		}
	}
}

func TestSchemas_Policies(t *testing.T) {
	t.Parallel()
	const head = "metadata: {name: x}\n"
	for name, c := range map[string]struct{ kind, text, want string }{
		"whole rule": {"CiliumNetworkPolicy", `
spec:
  description: d
  endpointSelector: {matchLabels: {app: x}, matchExpressions: [{key: k8s:a, operator: In, values: [b]}]}
  enableDefaultDeny: {ingress: true}
  ingress:
  - fromEndpoints: [{}]
    fromCIDRSet: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}]
    fromEntities: [world, kube-apiserver]
    authentication: {mode: required}
    toPorts: [{ports: [{port: "80", endPort: 90, protocol: TCP}, {port: http}], rules: {http: [{method: GET, path: /x}]}}]
  - {}
  ingressDeny: [{fromCIDR: ["192.0.2.1", "2001:db8::/32"], icmps: [{fields: [{family: IPv4, type: 8}, {type: EchoRequest}]}]}]
  egress:
  - toFQDNs: [{matchPattern: "*.example.org"}, {matchName: example.org}]
    toServices: [{k8sService: {serviceName: a, namespace: b}}]
    toPorts: [{ports: [{port: "53", protocol: UDP}], rules: {dns: [{matchPattern: "*"}]}}]
  egressDeny: [{toGroups: [{aws: {region: x, anything: [1]}}]}]
status: {conditions: [{type: Valid, status: "True"}]}`, ""},
		"several rules":            {"CiliumNetworkPolicy", "specs: [{endpointSelector: {}}, {endpointSelector: {}, ingress: []}]", ""},
		"no selector":              {"CiliumNetworkPolicy", "spec: {}", "endpointSelector is missing"},
		"nodes in a namespace":     {"CiliumNetworkPolicy", "spec: {nodeSelector: {}}", "endpointSelector is missing"},
		"nodes":                    {"CiliumClusterwideNetworkPolicy", "spec: {nodeSelector: {}}", ""},
		"nodes and pods":           {"CiliumClusterwideNetworkPolicy", "spec: {nodeSelector: {}, endpointSelector: {}}", "2 of 2 alternatives"},
		"a subject without values": {"CiliumClusterwideNetworkPolicy", "spec: {endpointSelector: {matchExpressions: [{key: app, operator: In}]}}", "none of 2 alternatives"},
		"of no values":             {"CiliumClusterwideNetworkPolicy", "specs: [{endpointSelector: {matchExpressions: [{key: app, operator: NotIn, values: []}]}}]", "none of 2 alternatives"},
		"with values too many":     {"CiliumClusterwideNetworkPolicy", "spec: {endpointSelector: {matchExpressions: [{key: app, operator: Exists, values: [a]}]}}", "none of 2 alternatives"},
		"with an empty list":       {"CiliumClusterwideNetworkPolicy", "spec: {endpointSelector: {matchExpressions: [{key: app, operator: Exists, values: []}]}}", ""},
		"without a key":            {"CiliumClusterwideNetworkPolicy", "spec: {endpointSelector: {matchExpressions: [{key: 'k8s:', operator: Exists}]}}", "key: does not match"},
		"without a source":         {"CiliumNetworkPolicy", "spec: {endpointSelector: {matchExpressions: [{key: ':app', operator: Exists}]}}", "key: does not match"},
		"with a source":            {"CiliumClusterwideNetworkPolicy", "spec: {endpointSelector: {matchExpressions: [{key: 'k8s:a:b', operator: DoesNotExist}, {key: a, operator: In, values: [b]}]}}", ""},
		"a peer is left to agents": {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingress: [{fromEndpoints: [{matchExpressions: [{key: app, operator: In}]}]}]}", ""},
		"misspelt direction":       {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingres: []}", ""}, // kept, and the agent reports it
		"misspelt peers":           {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingress: [{fromEndpoint: [{}]}]}", ""},
		"port out of range":        {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: '65536'}]}]}]}", "port: does not match"},
		"port as a number":         {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: 80}]}]}]}", "port: is no string"},
		"unknown entity":           {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingress: [{fromEntities: [moon]}]}", "is not one of"},
		"no CIDR":                  {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingress: [{fromCIDR: [x]}]}", "none of 3 alternatives"},
		"denied requests": {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingressDeny: [{toPorts: [{rules: {http: [{}]}}]}]}",
			""},
		"41 ports": {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingress: [{toPorts: [{ports: [" +
			strings.Repeat("{port: '1'},", 41) + "]}]}]}", "more than 40"},
		"an identity's name": {"CiliumIdentity", "security-labels: {a: b}", "name: does not match"},
		"a node's bad CIDR":  {"CiliumNode", "spec: {ipam: {podCIDRs: [10.0.0.0]}}", "is no cidr"},
		"a node of Cilium":   {"CiliumNode", "spec: {eni: {vpc-id: x}, ipam: {pool: {10.0.0.1: {owner: x}}}}\nstatus: {ipam: {used: {}}}", ""},
		"a group":            {"CiliumCIDRGroup", "spec: {externalCIDRs: [10.0.0.0/8, 192.0.2.1, \"2001:db8::/32\"]}", ""},
		"an empty group":     {"CiliumCIDRGroup", "spec: {externalCIDRs: []}", ""},
		"a group of nothing": {"CiliumCIDRGroup", "spec: {}", "externalCIDRs is missing"},
		"a group of names":   {"CiliumCIDRGroup", "spec: {externalCIDRs: [example.org]}", "none of 3 alternatives"},
		"a group and a CIDR": {"CiliumNetworkPolicy", "spec: {endpointSelector: {}, ingress: [{fromCIDRSet: [{cidr: 10.0.0.0/8, cidrGroupRef: a}]}]}",
			"2 of 3 alternatives"},
		"a slice":                {"CiliumEndpointSlice", "namespace: a\nendpoints: [{name: x, id: 7, networking: {addressing: [{ipv4: 10.0.0.1}], node: 192.0.2.1}, encryption: {key: 0}}]", ""},
		"an empty slice":         {"CiliumEndpointSlice", "endpoints: []", ""},
		"a slice without a list": {"CiliumEndpointSlice", "namespace: a", "endpoints is missing"},
		"a slice of lost origin": {"CiliumEndpointSlice", "endpoints: [{name: x, waggle: {node: one}}]", "uid is missing"},
		"an endpoint's state":    {"CiliumEndpoint", "status: {state: happy}", "is not one of"},
		"an endpoint's health":   {"CiliumEndpoint", "status: {health: {bpf: OK}, log: [{code: OK}]}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var object any
			if err := yaml.UnmarshalStrict([]byte(head+c.text), &object); err != nil {
				t.Fatal(err)
			}
			faults := check(schemaOf(t, c.kind), object, "")
			if all := strings.Join(faults, "; "); c.want == "" && all != "" || !strings.Contains(all, c.want) {
				t.Errorf("faults %q, want %q", all, c.want)
			}
		})
	}
}

// check is a simple implementation of schema validation. Tests with a real cluster use the validation of the API server.
func check(s Schema, v any, path string) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, path+": "+fmt.Sprintf(format, args...)) }
	switch v := v.(type) {
	case map[string]any:
		if s.Type != "object" {
			fault("is an object")
			return faults
		}
		for key, value := range v {
			below, known := s.Properties[key]
			switch {
			case path == "" && key == "metadata":
				if name, ok := s.Properties[key].Properties["name"]; ok {
					faults = append(faults, check(name, value.(map[string]any)["name"], "name")...)
				}
			case known:
				faults = append(faults, check(below, value, path+"."+key)...)
			case s.AdditionalProperties != nil:
				faults = append(faults, check(*s.AdditionalProperties, value, path+"."+key)...)
			case !s.PreserveUnknown:
				fault("%s is unknown", key)
			}
		}
		for _, key := range s.Required {
			if _, ok := v[key]; !ok {
				fault("%s is missing", key)
			}
		}
	case []any:
		if s.Type != "array" {
			fault("is a list")
			return faults
		}
		if s.MaxItems != nil && int64(len(v)) > *s.MaxItems {
			fault("more than %d", *s.MaxItems)
		}
		if int64(len(v)) < s.MinItems {
			fault("fewer than %d", s.MinItems)
		}
		for _, value := range v {
			faults = append(faults, check(*s.Items, value, path+"[]")...)
		}
	default:
		faults = append(faults, checkScalar(s, v, path)...)
	}
	return append(faults, checkAlternatives(s, v, path)...)
}

func checkScalar(s Schema, v any, path string) (faults []string) {
	text, isText := v.(string)
	if s.Type == "string" != isText && !s.IntOrString {
		return []string{path + ": is no " + s.Type}
	}
	if s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(text) {
		faults = append(faults, path+": does not match")
	}
	if s.Enum != nil && !slices.Contains(s.Enum, text) {
		faults = append(faults, path+": is not one of them")
	}
	_, cidrErr := netip.ParsePrefix(text)
	addr, _ := netip.ParseAddr(text)
	if s.Format == "cidr" && cidrErr != nil || s.Format == "ipv4" && !addr.Is4() || s.Format == "ipv6" && !addr.Is6() {
		faults = append(faults, path+": is no "+s.Format)
	}
	if n, ok := v.(float64); ok && s.Minimum != nil && (int64(n) < *s.Minimum || int64(n) > *s.Maximum) {
		faults = append(faults, path+": is out of range")
	}
	return faults
}

func checkAlternatives(s Schema, v any, path string) (faults []string) {
	count := func(alternatives []Schema) (held int) {
		for _, a := range alternatives {
			merged := s
			merged.AnyOf, merged.OneOf, merged.Required, merged.Format = nil, nil, a.Required, a.Format
			for name, narrower := range a.Properties {
				below := s.Properties[name]
				below.Enum, below.MinItems, below.MaxItems = narrower.Enum, narrower.MinItems, narrower.MaxItems
				merged = merged.with(map[string]Schema{name: below})
			}
			if len(check(merged, v, path)) == 0 {
				held++
			}
		}
		return held
	}
	if n := count(s.AnyOf); len(s.AnyOf) > 0 && n == 0 {
		faults = append(faults, fmt.Sprintf("%s: none of %d alternatives", path, len(s.AnyOf)))
	}
	if n := count(s.OneOf); len(s.OneOf) > 0 && n != 1 {
		faults = append(faults, fmt.Sprintf("%s: %d of %d alternatives", path, n, len(s.OneOf)))
	}
	return faults
}
