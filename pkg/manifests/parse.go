package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/printable"
)

const (
	// MaxDocuments limits the documents of one file, including items of Lists.
	MaxDocuments = 10_000
	// maxText limits a text that repeats parts of the file, in bytes.
	maxText = 300
)

// Document is one document of a file, or one item of a List.
type Document struct {
	Line int    // first line, from 1; 0 for the whole file
	Item int    // number inside a List, from 1; 0 outside of Lists
	Kind string // of the object; printable and short, as is Name
	Name string // "name" or "namespace/name"
	Row  k8sobjects.Row
	// Err explains why there is no row; its type is [k8sobjects.NotForUs] when the object is valid. An error of type [k8sobjects.Partly] names the parts that
	// the row lacks.
	Err error
}

// Parse reads a whole file of YAML, or of consecutive JSON values. It never fails: the documents hold the errors. Pods of nodes other than nodeName are not
// used.
func Parse(data []byte, isJSON bool, nodeName string) []Document {
	p := parser{nodeName: nodeName}
	documents := split(data)
	if isJSON {
		var err error
		if documents, err = splitJSON(data); err != nil {
			defer func() { p.reject(document{}, err) }()
		}
	}
	for _, d := range documents {
		if len(p.out) >= MaxDocuments {
			p.reject(d, fmt.Errorf("more than %d objects in one file: the rest is not read", MaxDocuments))
			break
		}
		p.document(d, isJSON)
	}
	return p.out
}

type parser struct {
	nodeName string
	out      []Document
}

func (p *parser) reject(d document, err error) {
	p.out = append(p.out, Document{Line: d.line, Err: err})
}

// document reads one document, or all items of a List.
func (p *parser) document(d document, asJSON bool) {
	data := d.data
	if !asJSON {
		var err error
		if data, err = yaml.YAMLToJSONStrict(d.data); err != nil {
			p.reject(d, errors.New(shiftLines(err.Error(), d.line-1)))
			return
		}
	}
	if string(data) == "null" {
		return // only comments
	}
	list, err := listItems(data)
	if err != nil {
		p.reject(d, err)
		return
	}
	if list == nil {
		p.object(d, 0, data)
		return
	}
	for i, item := range list {
		if len(p.out) >= MaxDocuments {
			p.reject(d, fmt.Errorf("more than %d objects in one file: the rest is not read", MaxDocuments))
			return
		}
		p.object(d, i+1, item)
	}
}

// object reads one object.
func (p *parser) object(d document, item int, data []byte) {
	o := Document{Line: d.line, Item: item}
	var id identity
	if o.Err = kjson.UnmarshalCaseSensitivePreserveInts(data, &id); o.Err == nil {
		o.Kind, o.Name = printable.Short(id.Kind, maxText), printable.Short(id.name(), maxText)
		o.Row, o.Err = decode(id, data, p.nodeName)
	}
	if partly := k8sobjects.Partly(""); o.Err != nil && !errors.As(o.Err, &partly) {
		o.Row = nil
	}
	p.out = append(p.out, o)
}

// identity holds the fields that name an object.
type identity struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

func (i identity) name() string {
	if i.Metadata.Namespace == "" {
		return i.Metadata.Name
	}
	return i.Metadata.Namespace + "/" + i.Metadata.Name
}

// listItems returns the items of a List of arbitrary objects, and nil for any other object.
func listItems(data []byte) ([]json.RawMessage, error) {
	var list struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		return nil, err
	}
	if kind.Kind != "List" {
		return nil, nil
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &list); err != nil {
		return nil, err
	}
	if list.APIVersion != "v1" {
		return nil, fmt.Errorf("apiVersion of a List is %q, must be v1", list.APIVersion)
	}
	if list.Items == nil {
		list.Items = []json.RawMessage{}
	}
	return list.Items, nil
}

var lineInError = regexp.MustCompile(`\bline (\d+)`)

// shiftLines shifts line numbers in a YAML error, so that they count from the beginning of the file.
func shiftLines(text string, by int) string {
	return lineInError.ReplaceAllStringFunc(text, func(match string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(match, "line "))
		if err != nil {
			return match
		}
		return "line " + strconv.Itoa(n+by)
	})
}
