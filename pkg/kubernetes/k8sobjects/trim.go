package k8sobjects

import (
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Trim reduces the metadata of a newly decoded object, which the caller owns, to the fields that rows use. Texts that many objects share are stored
// once.
func Trim(meta *metav1.ObjectMeta) {
	*meta = metav1.ObjectMeta{
		Namespace: Intern(meta.Namespace), Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion,
		Generation: meta.Generation, CreationTimestamp: meta.CreationTimestamp, Labels: internAll(meta.Labels), Annotations: internAll(readable(meta.Annotations)),
	}
}

// Intern returns the shared copy of a text.
func Intern(s string) string { return unique.Make(s).Value() }

func internAll(in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]string, len(in))
	for k, v := range in {
		out[Intern(k)] = Intern(v)
	}
	return out
}

// readable keeps the annotations that some cell may read: Cilium's and Waggle's, under their old and new names, and the few of Kubernetes that matter
// to a datapath. Others may hold whole manifests and secrets.
func readable(in map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range in {
		if isReadable(k) {
			out[k] = v
		}
	}
	return out
}

func isReadable(key string) bool {
	switch key {
	case "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth", "kubernetes.io/ingress.class",
		corev1.MirrorPodAnnotationKey, "service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints":
		return true
	}
	domain, _, _ := strings.Cut(key, "/")
	for _, ours := range []string{"cilium.io", "waggle.io"} {
		if domain == ours || strings.HasSuffix(domain, "."+ours) {
			return true
		}
	}
	return domain == "io.cilium" || strings.HasPrefix(domain, "io.cilium.")
}

// InternRow interns the texts of a row from disk, as [Trim] does for an object.
func InternRow(row Row) {
	switch r := row.(type) {
	case *k8s.Node:
		r.Labels, r.Annotations = internAll(r.Labels), internAll(r.Annotations)
		for i := range r.Addresses {
			r.Addresses[i].Type = Intern(r.Addresses[i].Type)
		}
	case *k8s.Pod:
		r.Namespace, r.NodeName, r.Labels = Intern(r.Namespace), Intern(r.NodeName), internAll(r.Labels)
	case *k8s.Namespace:
		r.Labels = internAll(r.Labels)
	case *k8s.Service:
		internService(r)
	case *k8s.EndpointSlice:
		internSlice(r)
	case *cilium.Identity:
		r.Labels = internAll(r.Labels)
	case *cilium.CIDRGroup:
		r.Labels = internAll(r.Labels)
	}
}

func internService(r *k8s.Service) {
	r.Namespace, r.Type = Intern(r.Namespace), Intern(r.Type)
	r.Labels, r.Annotations = internAll(r.Labels), internAll(r.Annotations)
	r.Ports, r.ClusterIPs = exact(r.Ports), exact(r.ClusterIPs)
	shareLabels(r)
	for i := range r.Ports {
		p := &r.Ports[i]
		p.Name, p.Protocol, p.TargetPort = Intern(p.Name), Intern(p.Protocol), Intern(p.TargetPort)
	}
}

func internSlice(r *k8s.EndpointSlice) {
	r.Namespace, r.AddressType, r.Service = Intern(r.Namespace), Intern(r.AddressType), partOf(r.Name, r.Service)
	r.Ports, r.Endpoints = exact(r.Ports), exact(r.Endpoints)
	for i := range r.Ports {
		p := &r.Ports[i]
		p.Name, p.Protocol = Intern(p.Name), Intern(p.Protocol)
	}
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		e.Addrs, e.NodeName, e.Zone = exact(e.Addrs), Intern(e.NodeName), Intern(e.Zone)
		for _, hints := range [][]string{e.ForZones, e.ForNodes} {
			for j, name := range hints {
				hints[j] = Intern(name)
			}
		}
	}
}

// exact returns a copy without spare capacity: the decoder of JSON allocates space for at least four elements, and most objects have one.
func exact[T any](in []T) []T {
	if len(in) == cap(in) {
		return in
	}
	return append(make([]T, 0, len(in)), in...)
}

// created returns the creation time of an object in Unix time.
func created(meta *metav1.ObjectMeta) int64 {
	if meta.CreationTimestamp.IsZero() {
		return 0
	}
	return meta.CreationTimestamp.Unix()
}
