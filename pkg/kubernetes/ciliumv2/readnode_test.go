package ciliumv2_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// nodeText is a CiliumNode as an API server writes it.
const nodeText = `{"apiVersion":"cilium.io/v2","kind":"CiliumNode","metadata":{"annotations":{"waggle.io/receives":"direct",` +
	`"waggle.io/wrote":"{\"annotations\":\"waggle.io/receives\",\"labels\":\"a,b\"}","example.com/note":"a \u003c b"},` +
	`"creationTimestamp":"2026-11-26T03:00:00Z","generation":3,"labels":{"kubernetes.io/os":"linux","zone":"a"},` +
	`"managedFields":[{"manager":"waggle-agent","operation":"Update","fieldsV1":{"f:spec":{"f:bootid":{}}}}],"name":"two",` +
	`"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"two","uid":"u"}],"resourceVersion":"123",` +
	`"uid":"5c0e6a57-6ee5-4f3b-8a61-0f7b00000001"},"spec":{"addresses":[{"type":"InternalIP","ip":"192.0.2.2"},` +
	`{"ip":"10.51.0.1","type":"CiliumInternalIP"}],"bootid":"b","encryption":{"key":3},"eni":{"first":[1,null]},"health":{"ipv4":"10.51.0.2","ipv6":"fd00:51::2"},` +
	`"ingress":{"ipv4":"10.51.0.3"},"ipam":{"podCIDRs":["10.51.0.0/24","fd00:51::/64"],"pools":{}}},"status":{"ipam":{"used":{}}}}`

// nodeVariants returns the text with members that are malformed, missing, duplicate or of another kind.
func nodeVariants() []string {
	return changed(nodeText, []change{
		{`"name":"two",`, `"name":"TWO",`}, {`"name":"two",`, `"name":"t\u0077o",`}, {`"name":"two",`, ``}, {`"name":"two",`, `"name":"two","namespace":"a",`},
		{`"name":"two",`, `"name":"two","name":"three",`}, {`"uid":"5c`, `"uid":null,"uid":"5c`}, {`"zone":"a"`, `"zone":"a b"`}, {`"zone":"a"`, `"zone":null`},
		{`"zone":"a"`, `"zone":"a","zone":"b"`}, {`"zone":"a"`, `"z\u006fne":"a"`}, {`"zone":"a"`, `"zone":1`}, {`"zone":"a"`, `"zone/":"a"`},
		{`"zone":"a"`, `"zone":"\u0061"`}, {`"labels":{"kub`, `"labels":{},"labels":{"kub`}, {`"labels":{"kub`, `"Labels":{"kub`},
		{`"direct"`, `"dir\uD83D\uDE00ct"`}, {`"direct"`, `"dir\uD83Dct"`}, {`"direct"`, `"dir\xct"`}, {`"direct"`, "\"dir\xff\""}, {`"direct"`, "\"dir\n\""},
		{`"direct"`, `"d\u00e9"`}, {`"direct"`, `""`}, {`"direct"`, `["direct"]`}, {`"annotations":{"wag`, `"annotations":null,"x":{"wag`},
		{`"generation":3`, `"generation":-3`}, {`"generation":3`, `"generation":3.0`}, {`"2026-11-26T03:00:00Z"`, `null`}, {`2026-11-26T03:00:00Z`, `today`},
		{`"key":3`, `"key":0`}, {`"key":3`, `"key":256`}, {`"key":3`, `"key":-1`}, {`"key":3`, `"key":3e0`}, {`"key":3`, `"key":"3"`},
		{`"key":3`, `"key":9223372036854775808`}, {`"key":3`, `"key":3,"key":4`}, {`"encryption":{`, `"encryption":{},"encryption":{`},
		{`"podCIDRs":["10.51.0.0/24","fd00:51::/64"]`, `"podCIDRs":[]`}, {`"podCIDRs":["10.51.0.0/24",`, `"podCIDRs":[null,`},
		{`"10.51.0.0/24"`, `"10.51.0.0\/24"`}, {`"10.51.0.0/24"`, `"anything"`}, {`"podCIDRs"`, `"podCidrs"`}, {`"ipam":{`, `"ipam":null,"ipam":{`},
		{`"addresses":[`, `"addresses":[{},`}, {`"addresses":[`, `"addresses":[null,`}, {`"addresses":[`, `"addresses":[],"addresses":[`},
		{`"type":"InternalIP"`, `"type":"InternalIP","type":"ExternalIP"`}, {`"ip":"10.51.0.1"`, `"ip":7`}, {`"health":{`, `"health":{"ipv4":"1","ipv4":"2"},"x":{`},
		{`"health":{"ipv4":"10.51.0.2","ipv6":"fd00:51::2"}`, `"health":null`}, {`"ingress":{"ipv4":"10.51.0.3"}`, `"ingress":5`},
		{`"spec":`, `"spec":{},"spec":`}, {`"spec":`, `"spec":null,"x":`}, {`"spec":`, `"Spec":`}, {`"metadata":`, `"metadata":{"name":"x"},"metadata":`},
		{`}}}}`, `}}}`}, {`}}}}`, `}}}},`}, {`"bootid":"b"`, `"bootid":"\ud800"`},
	})
}

func TestReadNode_MakesTheSameRow(t *testing.T) {
	t.Parallel()
	if !compare(t, nodeText, ciliumv2.ReadNode) {
		t.Error("an object as an API server writes it is left to others")
	}
	left := 0
	for _, text := range nodeVariants() {
		if !compare(t, text, ciliumv2.ReadNode) {
			left++
		}
	}
	if left < 20 {
		t.Errorf("%d variants are left to others", left)
	}
}

// randomNode returns a CiliumNode with random fields. Some values are invalid.
func randomNode(random *rand.Rand) *ciliumv2.CiliumNode {
	text := func(choices ...string) string { return choices[random.IntN(len(choices))] }
	value := func() string {
		return text("", "a", "10.0.0.1", "fd00::1", `"quoted" \`, "é\n<&>", "\U0001F600", "\u2028", "\x00", "x y")
	}
	o := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: text("one", "two.example", "", "A"), UID: types.UID(text("", "u", "v")),
		ResourceVersion: text("", "1", "2"), Generation: int64(random.IntN(3)), Namespace: text("", "", "", "a")}}
	if random.IntN(2) == 0 {
		o.CreationTimestamp = metav1.NewTime(time.Unix(random.Int64N(1<<31), 0))
	}
	if random.IntN(2) == 0 {
		o.Labels = map[string]string{"a": text("", "b", "b c"), "example.com/c": text("d", "e")}
	}
	if random.IntN(2) == 0 {
		o.Annotations = map[string]string{"waggle.io/" + text("a", "b"): value(), "network.cilium.io/c": value(), "example.com/d": value()}
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: value(), FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}}
	}
	for range random.IntN(3) {
		o.Spec.Addresses = append(o.Spec.Addresses, ciliumv2.NodeAddress{Type: value(), IP: value()})
	}
	for range random.IntN(3) {
		o.Spec.IPAM.PodCIDRs = append(o.Spec.IPAM.PodCIDRs, text("10.0.0.0/24", "fd00::/64", "", "x"))
	}
	o.Spec.Health = ciliumv2.AddressPair{IPv4: text("", "10.0.0.2"), IPv6: text("", "fd00::2")}
	o.Spec.Encrypt.Key, o.Spec.BootID = random.IntN(400)-50, value()
	return o
}

// TestReadNode_RandomObjects compares random objects, and their texts with a changed byte.
func TestReadNode_RandomObjects(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	const objects = 1000
	known := 0
	for range objects {
		text, err := json.Marshal(randomNode(random))
		if err != nil {
			t.Fatal(err)
		}
		if compare(t, string(text), ciliumv2.ReadNode) {
			known++
		}
		for range 3 {
			at := random.IntN(len(text))
			const marks = `{}[]",:\0-enu x`
			with := fmt.Sprintf("%s%c%s", text[:at], marks[random.IntN(len(marks))], text[at+random.IntN(2):])
			compare(t, with, ciliumv2.ReadNode)
		}
	}
	if known < objects/10 {
		t.Errorf("%d of %d objects are read", known, objects)
	}
}

func FuzzReadNode(f *testing.F) {
	for _, text := range nodeVariants() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) { compare(t, string(data), ciliumv2.ReadNode) })
}
