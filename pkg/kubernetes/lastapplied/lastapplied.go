// Package lastapplied records in a Kubernetes object which of its values the agent wrote, so that the agent does not mistake its own values for values of another
// writer.
package lastapplied

import "encoding/json"

// Annotation holds a JSON object from key to value. A key is the key of another annotation of the object, or the path of a field such as "spec.ipam.podCIDRs".
const Annotation = "waggle.io/wrote"

// Values holds the values that the agent wrote, by key.
type Values map[string]string

// Of parses the annotation. An invalid annotation counts as absent: then all values count as values of another writer.
func Of(annotations map[string]string) Values {
	var v Values
	if err := json.Unmarshal([]byte(annotations[Annotation]), &v); err != nil {
		return nil
	}
	return v
}

// Ours reports whether the agent wrote value and no other writer has changed it since.
func (v Values) Ours(key, value string) bool {
	written, ok := v[key]
	return ok && written == value
}

// String returns the annotation; empty without values.
func (v Values) String() string {
	if len(v) == 0 {
		return ""
	}
	text, err := json.Marshal(v) // sorts the keys; cannot fail for strings
	if err != nil {
		return ""
	}
	return string(text)
}
