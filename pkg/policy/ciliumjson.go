package policy

import (
	"bytes"
	"encoding/json"
	"errors"

	kjson "sigs.k8s.io/json"

	"github.com/waggle-net/waggle/pkg/printable"
)

// maxError limits the text of an error that a message contains, in bytes.
const maxError = 200

func short(err error) string { return printable.Short(err.Error(), maxError) }

// decode parses JSON strictly: unknown fields, duplicate fields and fields whose case differs are errors.
func decode(raw json.RawMessage, into any) error {
	unknown, err := kjson.UnmarshalStrict(raw, into)
	if err == nil && len(unknown) > 0 {
		err = unknown[0]
	}
	return err
}

// object parses the fields of a JSON object.
func object(raw json.RawMessage) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := decode(raw, &fields); err != nil {
		return nil, err
	}
	if fields == nil {
		return nil, errors.New("it is null")
	}
	return fields, nil
}

// hasNull reports whether JSON text contains a null. In place of a list a null is ambiguous: an absent list matches every peer, an empty list none.
func hasNull(raw json.RawMessage) bool {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	for {
		token, err := decoder.Token()
		if err != nil {
			return false // end of the text, whose syntax an earlier decode has checked
		}
		if token == nil {
			return true
		}
	}
}
