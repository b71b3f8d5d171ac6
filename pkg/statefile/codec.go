// Package statefile keeps small JSON documents in a directory such that a reader sees a whole document or none: each
// is written beside its target and renamed over it, carries a checksum, and a file that cannot be trusted is set aside
// and reported instead of being dropped. Nothing is synced to disk: the directory is meant to be a tmpfs, which a crash
// of the machine empties anyway.
package statefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// Version is the version of the envelope that this code writes and reads.
const Version = 1

// Errors that callers of [Decode] tell apart.
var (
	ErrCorrupt = errors.New("corrupt state file") // written by us, but it cannot be trusted
	ErrForeign = errors.New("foreign file")       // somebody else's
)

// envelope surrounds a document. The order of its fields is the order in the file: a file that was cut anywhere
// behind the first bytes is still known to be ours.
type envelope struct {
	Waggle   string          `json:"waggle"` // kind of the document
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"` // of Data, byte for byte
	Data     json.RawMessage `json:"data"`
}

// Encode wraps a document, which must be one JSON value, into the bytes of a file.
func Encode(kind string, document []byte) ([]byte, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, document); err != nil {
		return nil, fmt.Errorf("encode a state file of kind %q: %w", kind, err)
	}
	return seal(kind, compact.Bytes())
}

func seal(kind string, compact []byte) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // escapes would change the bytes under the checksum
	if err := enc.Encode(envelope{kind, Version, checksum(compact), compact}); err != nil {
		return nil, fmt.Errorf("encode a state file of kind %q: %w", kind, err)
	}
	return out.Bytes(), nil
}

// Decode returns the document inside a file. The error wraps [ErrCorrupt] or [ErrForeign] and says why.
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
	// The checksum covers the document alone. Sealing it again covers everything around it.
	if again, err := seal(kind, e.Data); err != nil || !bytes.Equal(again, file) {
		return nil, fmt.Errorf("%w: what surrounds the contents is damaged", ErrCorrupt)
	}
	return e.Data, nil
}

// ours tells whether a file begins as [Encode] lets it begin, as far as it goes; an empty one may have been ours.
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
