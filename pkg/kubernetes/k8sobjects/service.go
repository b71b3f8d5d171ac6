package k8sobjects

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Service converts a Service.
func Service(o *corev1.Service) (*k8s.Service, error) {
	spec := field.NewPath("spec")
	row := &k8s.Service{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Labels: serving(o.Labels), Labelled: labelled(o.Labels),
		Annotations: o.Annotations, Created: created(&o.ObjectMeta), Selects: selects(o.Spec.Selector), Type: Intern(string(o.Spec.Type)),
		ExternalLocal:        o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		PublishNotReadyAddrs: o.Spec.PublishNotReadyAddresses}
	if p := o.Spec.InternalTrafficPolicy; p != nil {
		row.InternalLocal = *p == corev1.ServiceInternalTrafficPolicyLocal
	}
	types := []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer,
		corev1.ServiceTypeExternalName}
	shareLabels(row)
	if row.Type == "" {
		row.Type = string(corev1.ServiceTypeClusterIP)
	} else if !slices.Contains(types, o.Spec.Type) {
		return nil, field.NotSupported(spec.Child("type"), o.Spec.Type, types)
	}
	var errs []error
	collect := func(err error) { errs = append(errs, err) }
	var err error
	row.ClusterIPs, row.Headless, err = clusterIPs(spec, o)
	collect(err)
	more := 0
	problem := func(text string) { // API servers accept some invalid texts
		if len(row.Problems) == maxProblems {
			more++
			return
		}
		row.Problems = append(row.Problems, text)
	}
	row.ExternalIPs = readEach(spec.Child("externalIPs"), o.Spec.ExternalIPs, parseAddr, problem)
	row.IngressIPs = readEach(field.NewPath("status", "loadBalancer", "ingress"), loadBalancerIPs(o), parseAddr, problem)
	row.SourceRanges = sourceRanges(spec.Child("loadBalancerSourceRanges"), o.Spec.LoadBalancerSourceRanges, problem)
	if more > 0 {
		row.Problems = append(row.Problems, fmt.Sprintf("and %d more", more))
	}
	row.HealthCheckNodePort, err = port(spec.Child("healthCheckNodePort"), o.Spec.HealthCheckNodePort, true)
	collect(err)
	row.Affinity, err = affinity(spec, o)
	collect(err)
	row.Ports = slices.Grow(row.Ports, len(o.Spec.Ports))
	for i := range o.Spec.Ports {
		p, err := servicePort(spec.Child("ports").Index(i), &o.Spec.Ports[i])
		collect(err)
		row.Ports = append(row.Ports, p)
	}
	return row, errors.Join(errs...)
}

// maxProblems limits the invalid texts that a row names.
const maxProblems = 8

// maxLabelled limits [k8s.Service.Labelled], in bytes.
const maxLabelled = 4 << 10

// labelled formats all labels of a Service. As one text they take less memory than as a map.
func labelled(all map[string]string) string {
	if text := selects(all); len(text) <= maxLabelled {
		return text
	}
	return k8s.TooManyLabels
}

// shareLabels stores the selector of a Service in the memory of its labels if the texts are equal, which they often are.
func shareLabels(s *k8s.Service) {
	if s.Selects == s.Labelled {
		s.Selects = s.Labelled
	}
}

// serving returns the labels of a Service that select its proxy. There are tens of thousands of Services, and a map of all labels would be a large part of
// their rows.
func serving(all map[string]string) (kept map[string]string) {
	for k, v := range all {
		if strings.HasPrefix(k, "service.kubernetes.io/") || isReadable(k) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[k] = v
		}
	}
	return kept
}

// selects formats a selector or labels like Kubernetes.
func selects(selector map[string]string) string {
	pairs := make([]string, 0, len(selector))
	for k, v := range selector {
		pairs = append(pairs, k+"="+v)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

func clusterIPs(spec *field.Path, o *corev1.Service) (ips []netip.Addr, headless bool, err error) {
	texts := o.Spec.ClusterIPs
	if len(texts) == 0 && o.Spec.ClusterIP != "" {
		texts = []string{o.Spec.ClusterIP}
	}
	if len(texts) == 1 && texts[0] == corev1.ClusterIPNone {
		return nil, true, nil
	}
	ips, err = parseAddrs(spec.Child("clusterIPs"), texts)
	return ips, false, err
}

// sourceRanges converts the allowed client ranges of a load balancer. Kubernetes allows spaces around each. If none is valid, no client is allowed.
func sourceRanges(path *field.Path, texts []string, problem func(string)) []netip.Prefix {
	trimmed := make([]string, len(texts))
	for i, text := range texts {
		trimmed[i] = strings.TrimSpace(text)
	}
	list := readEach(path, trimmed, parsePrefix, problem)
	if len(texts) > 0 && len(list) == 0 {
		return []netip.Prefix{k8s.NoSourceRange}
	}
	return list
}

// Limits of session affinity in Kubernetes: default three hours, at most one day.
const (
	defaultAffinity = 3 * time.Hour
	maxAffinity     = 24 * time.Hour
)

func affinity(spec *field.Path, o *corev1.Service) (time.Duration, error) {
	switch o.Spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return 0, nil
	case corev1.ServiceAffinityClientIP:
	default:
		return 0, field.NotSupported(spec.Child("sessionAffinity"), o.Spec.SessionAffinity,
			[]corev1.ServiceAffinity{corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP})
	}
	c := o.Spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity, nil
	}
	seconds := *c.ClientIP.TimeoutSeconds
	if seconds <= 0 || seconds > int32(maxAffinity/time.Second) {
		return 0, field.Invalid(spec.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), seconds,
			"must be between 1 and 86400")
	}
	return time.Duration(seconds) * time.Second, nil
}

func servicePort(path *field.Path, p *corev1.ServicePort) (k8s.ServicePort, error) {
	row := k8s.ServicePort{Name: Intern(p.Name)}
	if p.Name != "" {
		if problems := validation.IsDNS1123Label(p.Name); len(problems) > 0 {
			return row, field.Invalid(path.Child("name"), p.Name, problems[0])
		}
	}
	var err error
	if row.Protocol, err = protocol(path.Child("protocol"), p.Protocol); err != nil {
		return row, err
	}
	if row.Port, err = port(path.Child("port"), p.Port, false); err != nil {
		return row, err
	}
	if row.NodePort, err = port(path.Child("nodePort"), p.NodePort, true); err != nil {
		return row, err
	}
	target := p.TargetPort
	if target == (intstr.IntOrString{}) {
		target = intstr.FromInt32(p.Port)
	}
	row.TargetPort, err = portOrName(path.Child("targetPort"), target)
	return row, err
}

// portOrName converts a number or the name of a container port.
func portOrName(path *field.Path, p intstr.IntOrString) (string, error) {
	if p.Type == intstr.String {
		if problems := validation.IsValidPortName(p.StrVal); len(problems) > 0 {
			return "", field.Invalid(path, p.StrVal, problems[0])
		}
		return Intern(p.StrVal), nil
	}
	_, err := port(path, p.IntVal, false)
	return Intern(p.String()), err
}
