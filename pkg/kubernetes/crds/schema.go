package crds

import "slices"

// Schema is the part of a structural OpenAPI schema that the definitions use.
type Schema struct {
	Description          string            `json:"description,omitempty"`
	Type                 string            `json:"type,omitempty"`
	Format               string            `json:"format,omitempty"`
	Pattern              string            `json:"pattern,omitempty"`
	Enum                 []string          `json:"enum,omitempty"`
	Minimum              *int64            `json:"minimum,omitempty"`
	Maximum              *int64            `json:"maximum,omitempty"`
	MaxLength            int64             `json:"maxLength,omitempty"`
	MinItems             int64             `json:"minItems,omitempty"`
	MaxItems             *int64            `json:"maxItems,omitempty"`
	Items                *Schema           `json:"items,omitempty"`
	Properties           map[string]Schema `json:"properties,omitempty"`
	AdditionalProperties *Schema           `json:"additionalProperties,omitempty"`
	Required             []string          `json:"required,omitempty"`
	AnyOf                []Schema          `json:"anyOf,omitempty"`
	OneOf                []Schema          `json:"oneOf,omitempty"`
	IntOrString          bool              `json:"x-kubernetes-int-or-string,omitempty"`
	PreserveUnknown      bool              `json:"x-kubernetes-preserve-unknown-fields,omitempty"`
	Validations          []Validation      `json:"x-kubernetes-validations,omitempty"`
}

// Validation is a validation rule in CEL.
type Validation struct {
	Rule    string `json:"rule"`
	Message string `json:"message"`
}

// Constructors of schemas.

func object(description string, properties map[string]Schema) Schema {
	return Schema{Description: description, Type: "object", Properties: properties}
}

func list(description string, of Schema) Schema {
	return Schema{Description: description, Type: "array", Items: &of}
}

func words(description string) Schema { return Schema{Description: description, Type: "string"} }

func matching(description, pattern string) Schema {
	return Schema{Description: description, Type: "string", Pattern: pattern}
}

func oneOf(description string, values ...string) Schema {
	return Schema{Description: description, Type: "string", Enum: values}
}

func yes(description string) Schema { return Schema{Description: description, Type: "boolean"} }

func number(description string, from, to int64) Schema {
	return Schema{Description: description, Type: "integer", Format: "int64", Minimum: &from, Maximum: &to}
}

func formatted(description, format string) Schema {
	return Schema{Description: description, Type: "string", Format: format}
}

// dictionary returns the schema of a map from strings to values.
func dictionary(description string, of Schema) Schema {
	return Schema{Description: description, Type: "object", AdditionalProperties: &of}
}

// foreign returns the schema of an object with any fields, which the API server keeps.
func foreign(description string) Schema {
	return Schema{Description: description, Type: "object", PreserveUnknown: true}
}

// foreignList returns the schema of a list of objects with any fields, which the API server keeps.
func foreignList(description string) Schema {
	return list(description, Schema{Type: "object", PreserveUnknown: true})
}

// The following methods return a changed copy.

func (s Schema) require(names ...string) Schema {
	s.Required = slices.Concat(s.Required, names)
	return s
}

func (s Schema) atMost(items int64) Schema {
	s.MaxItems = &items
	return s
}

// with adds properties to the schema of an object.
func (s Schema) with(more map[string]Schema) Schema {
	all := make(map[string]Schema, len(s.Properties)+len(more))
	for _, properties := range []map[string]Schema{s.Properties, more} {
		for name, schema := range properties {
			all[name] = schema
		}
	}
	s.Properties = all
	return s
}

// exactlyOne requires exactly one of the properties.
func (s Schema) exactlyOne(names ...string) Schema {
	for _, name := range names {
		s.OneOf = append(s.OneOf, Schema{Required: []string{name}})
	}
	return s
}

// keepUnknown makes the object and every object inside it keep fields that are not in the schema.
func (s Schema) keepUnknown() Schema {
	if s.Properties != nil {
		s.PreserveUnknown = true
		all := make(map[string]Schema, len(s.Properties))
		for name, property := range s.Properties {
			all[name] = property.keepUnknown()
		}
		s.Properties = all
	}
	if s.Items != nil {
		items := s.Items.keepUnknown()
		s.Items = &items
	}
	return s
}
