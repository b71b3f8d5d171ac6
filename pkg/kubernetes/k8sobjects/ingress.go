package k8sobjects

import (
	"strconv"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Ingress converts an Ingress.
func Ingress(o *networkingv1.Ingress) *k8s.Ingress {
	row := &k8s.Ingress{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Annotations: o.Annotations,
		Default: ingressBackend(o.Spec.DefaultBackend)}
	if o.Spec.IngressClassName != nil {
		row.Class = *o.Spec.IngressClassName
	}
	for _, r := range o.Spec.Rules {
		rule := k8s.IngressRule{Host: r.Host}
		if r.HTTP != nil {
			for i := range r.HTTP.Paths {
				rule.Paths = append(rule.Paths, ingressPath(&r.HTTP.Paths[i]))
			}
		}
		row.Rules = append(row.Rules, rule)
	}
	for _, t := range o.Spec.TLS {
		tls := k8s.IngressTLS{Secret: t.SecretName}
		if len(t.Hosts) > 0 {
			tls.Hosts = t.Hosts
		}
		row.TLS = append(row.TLS, tls)
	}
	return row
}

func ingressPath(o *networkingv1.HTTPIngressPath) k8s.IngressPath {
	p := k8s.IngressPath{Path: o.Path, Backend: ingressBackend(&o.Backend)}
	if o.PathType != nil {
		p.Type = string(*o.PathType)
	}
	return p
}

func ingressBackend(o *networkingv1.IngressBackend) k8s.IngressBackend {
	if o == nil || o.Service == nil {
		return k8s.IngressBackend{}
	}
	b := k8s.IngressBackend{Service: o.Service.Name, Port: o.Service.Port.Name}
	if b.Port == "" && o.Service.Port.Number != 0 {
		b.Port = strconv.Itoa(int(o.Service.Port.Number))
	}
	return b
}
