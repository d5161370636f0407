//go:build linux && cgo

package gpu

import (
	"reflect"

	"github.com/ebitengine/purego"

	"github.com/gpufair/gpufair/benchmark"
)

// bind finds the functions of lib that the fields of api name. A missing one is an error here; purego's own way is a panic.
func bind(lib uintptr, api any) error {
	v := reflect.ValueOf(api).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("cu")
		symbol, err := purego.Dlsym(lib, name)
		if err != nil {
			return &benchmark.Problem{
				Code: "old_driver", Text: "the NVIDIA driver lacks " + name, Advice: "install a driver of version 535 or newer and reboot",
			}
		}
		purego.RegisterFunc(v.Field(i).Addr().Interface(), symbol)
	}
	return nil
}
