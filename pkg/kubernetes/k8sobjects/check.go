// Package k8sobjects converts Kubernetes objects to rows, for all readers: it finds errors in objects, and every row is well formed.
package k8sobjects

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/waggle-net/waggle/pkg/printable"
)

// NotForUs is the reason why a well-formed object is not used.
type NotForUs string

func (n NotForUs) Error() string { return string(n) }

// MaxErrors limits the reported errors of one object.
const MaxErrors = 3

// Check validates metadata by the rules of an API server.
func Check(meta *metav1.ObjectMeta, namespaced bool, name validation.ValidateNameFunc) error {
	return list(validation.ValidateObjectMeta(meta, namespaced, name, field.NewPath("metadata")))
}

func list(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[:min(len(errs), MaxErrors)].ToAggregate()
}

// Partly names the unusable parts of an object whose other parts are usable. It is returned together with a row.
type Partly string

func (p Partly) Error() string { return string(p) }

// unusable collects the unusable parts of an object and names the first [MaxErrors].
type unusable struct {
	texts []string
	more  int
}

func (u *unusable) add(err error) {
	if len(u.texts) == MaxErrors {
		u.more++
		return
	}
	u.texts = append(u.texts, printable.Short(err.Error(), maxInvalid))
}

// err returns nil if all parts are usable.
func (u *unusable) err() error {
	if len(u.texts) == 0 {
		return nil
	}
	text := strings.Join(u.texts, "; ")
	if u.more > 0 {
		text += fmt.Sprintf("; and %d more", u.more)
	}
	return Partly(text)
}
