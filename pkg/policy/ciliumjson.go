package policy

import (
	"bytes"
	"encoding/json"
	"errors"

	kjson "sigs.k8s.io/json"

	"github.com/waggle-net/waggle/pkg/printable"
)

// maxError bounds how much of an error's text a message repeats, in bytes.
const maxError = 200

func short(err error) string { return printable.Short(err.Error(), maxError) }

// decode reads JSON strictly: unknown and doubled fields, and a case that differs, are errors.
func decode(raw json.RawMessage, into any) error {
	unknown, err := kjson.UnmarshalStrict(raw, into)
	if err == nil && len(unknown) > 0 {
		err = unknown[0]
	}
	return err
}

// object reads the fields of an object.
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

// hasNull tells whether there is a null anywhere in a text. Where an absent list means everybody and an empty one nobody, it
// could mean either.
func hasNull(raw json.RawMessage) bool {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	for {
		token, err := decoder.Token()
		if err != nil {
			return false // at its end: it was decoded before
		}
		if token == nil {
			return true
		}
	}
}
