// Package statefile stores small JSON documents in a directory so that a reader sees a whole document or none: each document is written to a temporary file,
// renamed over its target, and carries a checksum. An invalid file is quarantined and reported instead of being deleted. Nothing is synced to disk: the
// directory should be a tmpfs, which a crash of the machine empties anyway.
package statefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// Version is the supported version of the envelope.
const Version = 1

// Errors of [Decode] for errors.Is.
var (
	ErrCorrupt = errors.New("corrupt state file") // written by us, but invalid
	ErrForeign = errors.New("foreign file")       // written by another program
)

// envelope contains a document. The order of its fields is the order in the file: the first bytes suffice to recognise a truncated file of Waggle.
type envelope struct {
	Waggle   string          `json:"waggle"` // kind of the document
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"` // of Data, byte for byte
	Data     json.RawMessage `json:"data"`
}

// Encode wraps a document, which must be one JSON value without spaces as [json.Marshal] returns it, into the content of a file.
func Encode(kind string, document []byte) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // escapes would change the checksummed bytes
	if err := enc.Encode(envelope{kind, Version, checksum(document), document}); err != nil {
		return nil, fmt.Errorf("encode a state file of kind %q: %w", kind, err)
	}
	return out.Bytes(), nil
}

// Decode returns the document inside a file. The error wraps [ErrCorrupt] or [ErrForeign] and contains the reason.
func Decode(kind string, file []byte) ([]byte, error) {
	if !ours(kind, file) {
		return nil, fmt.Errorf("%w: does not begin as a state file of kind %q", ErrForeign, kind)
	}
	var e envelope
	if err := json.Unmarshal(file, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if e.Version != Version {
		return nil, fmt.Errorf("%w: version %d, this agent reads version %d", ErrCorrupt, e.Version, Version)
	}
	if want := checksum(e.Data); e.Checksum != want {
		return nil, fmt.Errorf("%w: checksum is %.80q, the contents have %s", ErrCorrupt, e.Checksum, want)
	}
	// The checksum covers only the document. Comparing with a newly encoded file covers the envelope.
	if again, err := Encode(kind, e.Data); err != nil || !bytes.Equal(again, file) {
		return nil, fmt.Errorf("%w: the envelope of the contents is damaged", ErrCorrupt)
	}
	return e.Data, nil
}

// ours reports whether a file, or the part that is left of it, begins like the output of [Encode]; an empty file may be one.
func ours(kind string, file []byte) bool {
	name, err := json.Marshal(kind)
	if err != nil {
		return false
	}
	begin := append([]byte(`{"waggle":`), name...)
	n := min(len(begin), len(file))
	return bytes.Equal(begin[:n], file[:n])
}

func checksum(document []byte) string {
	sum := sha256.Sum256(document)
	return "sha256:" + hex.EncodeToString(sum[:])
}
