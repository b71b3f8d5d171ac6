package celltest

import (
	"reflect"

	"go.yaml.in/yaml/v3"
)

// YAMLKeeps tells whether the YAML library itself gives texts back as they were. It loses some that hold line breaks
// behind leading white space (its block scalars then lack an indentation indicator), and tests of rows that survive YAML
// must not hold that against the rows.
func YAMLKeeps(texts ...string) bool {
	type holder struct {
		One  string
		Many []string
		Last string
	}
	for _, text := range texts {
		in := holder{text, []string{text, "0", text}, "0"}
		var out holder
		if b, err := yaml.Marshal(in); err != nil || yaml.Unmarshal(b, &out) != nil || !reflect.DeepEqual(in, out) {
			return false
		}
	}
	return true
}
