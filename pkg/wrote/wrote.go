// Package wrote remembers in an object of Kubernetes which of its values the agent wrote itself, so that it never takes
// its own words for those of somebody else.
package wrote

import "encoding/json"

// Annotation holds a JSON object from key to value. A key is that of another annotation of the object, or the path of a
// field such as "spec.ipam.podCIDRs".
const Annotation = "waggle.io/wrote"

// Values are what the agent wrote, by key.
type Values map[string]string

// Of reads what annotations say. What cannot be read is as if it were not there: then a value counts as somebody else's.
func Of(annotations map[string]string) Values {
	var v Values
	if err := json.Unmarshal([]byte(annotations[Annotation]), &v); err != nil {
		return nil
	}
	return v
}

// Ours tells whether the agent wrote value, and nobody has changed it since.
func (v Values) Ours(key, value string) bool {
	written, ok := v[key]
	return ok && written == value
}

// String is the annotation; empty when there is nothing to remember.
func (v Values) String() string {
	if len(v) == 0 {
		return ""
	}
	text, err := json.Marshal(v) // sorts the keys; strings always have a form
	if err != nil {
		return ""
	}
	return string(text)
}
