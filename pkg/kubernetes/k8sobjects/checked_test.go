package k8sobjects

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestChecked_PanicRejectsTheObject(t *testing.T) {
	t.Parallel()
	row, err := checked(&metav1.ObjectMeta{Name: "a"}, false, validation.NameIsDNSSubdomain, func() (Row, error) {
		var rules []int
		return nil, fmt.Errorf("rule %d", rules[3])
	})
	if row != nil || err == nil || !strings.Contains(err.Error(), "cannot read the object") || !strings.Contains(err.Error(), "index out of range") {
		t.Errorf("row %v, error %v", row, err)
	}
}
