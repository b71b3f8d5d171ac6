// Package k8sobjects turns objects of Kubernetes into rows, whoever has read them: what is wrong in an object is found here,
// and every row is well formed.
package k8sobjects

import (
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NotForUs says why a well-formed object is not used.
type NotForUs string

func (n NotForUs) Error() string { return string(n) }

// MaxErrors bounds how many errors of one object are told.
const MaxErrors = 3

// Check holds metadata to the rules of an API server.
func Check(meta *metav1.ObjectMeta, namespaced bool, name validation.ValidateNameFunc) error {
	return list(validation.ValidateObjectMeta(meta, namespaced, name, field.NewPath("metadata")))
}

func list(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[:min(len(errs), MaxErrors)].ToAggregate()
}
