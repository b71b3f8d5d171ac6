package ciliumv2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/jsonscan"
)

// ReadNode reads the fields of a CiliumNode that its row needs or that are validated: its name, version, age, labels and annotations, its addresses, pod CIDRs
// and key. Unexpected input makes r unable, such as a null or a duplicate member.
func ReadNode(r *jsonscan.Reader) *CiliumNode {
	o := &CiliumNode{}
	var seen members
	r.Object(func(name []byte) {
		switch string(name) {
		case "metadata":
			seen.once(r, 0)
			readMetadata(r, &o.ObjectMeta, nodeMetadata(r, &o.ObjectMeta))
		case "spec":
			seen.once(r, 1)
			readNodeSpec(r, &o.Spec)
		default:
			r.Skip()
		}
	})
	return o
}

// nodeMetadata returns a function for [readMetadata] that reads labels and annotations and skips all else.
func nodeMetadata(r *jsonscan.Reader, meta *metav1.ObjectMeta) func(name []byte) {
	var seen members
	return func(name []byte) {
		switch string(name) {
		case "labels":
			seen.once(r, 0)
			meta.Labels = readTexts(r)
		case "annotations":
			seen.once(r, 1)
			meta.Annotations = readTexts(r)
		default:
			r.Skip()
		}
	}
}

// readTexts reads an object whose members are strings.
func readTexts(r *jsonscan.Reader) map[string]string {
	texts := map[string]string{}
	r.Object(func(name []byte) {
		key := string(name)
		if _, twice := texts[key]; twice {
			r.Fail()
		}
		texts[key] = r.Unquote()
	})
	return texts
}

func readNodeSpec(r *jsonscan.Reader, spec *NodeSpec) {
	var seen members
	r.Object(func(name []byte) {
		switch string(name) {
		case "addresses":
			seen.once(r, 0)
			r.Array(func() { spec.Addresses = append(spec.Addresses, readNodeAddress(r)) })
		case "health":
			seen.once(r, 1)
			spec.Health = readPair(r)
		case "ipam":
			seen.once(r, 2)
			readNodeIPAM(r, &spec.IPAM)
		case "encryption":
			seen.once(r, 3)
			readNodeKey(r, &spec.Encrypt)
		default:
			r.Skip()
		}
	})
}

func readNodeAddress(r *jsonscan.Reader) (address NodeAddress) {
	var seen members
	r.Object(func(name []byte) {
		switch string(name) {
		case "type":
			seen.once(r, 0)
			address.Type = string(r.Text())
		case "ip":
			seen.once(r, 1)
			address.IP = string(r.Text())
		default:
			r.Skip()
		}
	})
	return address
}

func readNodeIPAM(r *jsonscan.Reader, ipam *NodeIPAM) {
	var seen members
	r.Object(func(name []byte) {
		if string(name) != "podCIDRs" {
			r.Skip()
			return
		}
		seen.once(r, 0)
		r.Array(func() { ipam.PodCIDRs = append(ipam.PodCIDRs, string(r.Text())) })
	})
}

func readNodeKey(r *jsonscan.Reader, encryption *NodeEncryption) {
	var seen members
	r.Object(func(name []byte) {
		if string(name) != "key" {
			r.Skip()
			return
		}
		seen.once(r, 0)
		encryption.Key = int(r.Int())
	})
}
