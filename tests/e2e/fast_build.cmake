# Given to llama.cpp's build by CMAKE_PROJECT_INCLUDE. The arithmetic stays optimised; the server's HTTP and JSON
# code and the unused multimodal models are compiled without optimisation, which halves the time of the build.
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  function(ramjet_fast_build)
    foreach(target mtmd server-context llama-server-impl llama-server)
      if(TARGET ${target})
        target_compile_options(${target} PRIVATE -O0 -g0)
      endif()
    endforeach()
  endfunction()
  cmake_language(DEFER CALL ramjet_fast_build)
endif()
